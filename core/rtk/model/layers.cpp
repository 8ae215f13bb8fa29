// What decoder layers compute between two attentions, in one call: see rtk/model/layers.py.
//
// Threads that have enough rows take some of their own through everything, a block at a time, which stays in their cache,
// and wait for nobody. Fewer rows are computed by all threads together, each with its panels of every product.

#include <algorithm>

#include <omp.h>

#include "panels.h"
#include "rows.h"

using panels::Pack, panels::PANEL, panels::Share;

namespace {

constexpr long BLOCK = 128;  // rows that go through all products at a time
constexpr long ALONE = 32;   // rows of a thread that takes some of its own, at least

static_assert(BLOCK <= panels::HEIGHT);

struct Norm {
    const float *weight;  // null: it is in the weights of what comes next
    float least;
};

struct Layer {
    Pack qkv, out, gate, up, down;
    Norm before, between;  // of attention, and of the MLP
    rows::Heads heads;
};

struct Step {
    const float *cos, *sin;  // [rows, dim]
    float *q, *k, *v;        // [rows, heads, dim]
    float *normed;           // [rows, width] what comes out behind the last layer
    float *scratch;          // [threads, `scratch` of the layers]
    long rows, threads;
};

// Floats from one row of a buffer to another's beginning that starts a line of the cache.
constexpr long whole_lines(long floats) { return (floats + 15) / 16 * 16; }

// Memory between the products of a block.
struct Buffers {
    float *sum;     // [BLOCK, width] what is to be added to x
    float *normed;  // [BLOCK, width]
    float *wide;    // [BLOCK, all heads * dim] q, k and v, or [BLOCK, inner] what goes into the MLP's last product
    float *gate;    // [BLOCK, PANEL] of a thread, followed by as much for up

    Buffers(float *memory, float *own, long width, long widest)
        : sum(memory), normed(sum + BLOCK * width), wide(normed + BLOCK * width),
          gate(own + BLOCK * (2 * width + widest)) {}
    static long size(long width, long widest) { return whole_lines(BLOCK * (2 * width + widest + 2 * PANEL)); }
};

long widest(const Layer &layer) { return std::max(layer.qkv.n, layer.gate.n); }

// Some of the threads, or one, that compute a block; all of them call every function.
struct Team {
    Share own;
    Buffers to;
    long rows;  // of the block

    void wait() const {
        if (own.count > 1) {
#pragma omp barrier
        }
    }

    template <class Body>
    void each_row(Body body) const {
        for (long row = own.begin(rows); row < own.end(rows); row++) body(row);
        wait();
    }

    void multiply(const Pack &pack, const float *x, float *y) const {
        panels::multiply(pack, own, x, pack.depth, y, rows);
        wait();
    }

    // x += what is to be added, unless there is nothing; its norm to `out`.
    void norm(const Norm &norm, float *x, bool more, float *out, long width) const {
        each_row([&](long row) {
            float *const at = x + row * width;
            if (more) rows::add(at, to.sum + row * width, width);
            rows::norm(at, norm.weight, out + row * width, width, norm.least);
        });
    }

    // What comes behind attention; x is complete once what is to be added was.
    void after(const Layer &layer, float *x, const float *answer) const {
        const long width = layer.out.n, inner = layer.gate.n, all = panels::count(inner);
        multiply(layer.out, answer, to.sum);
        norm(layer.between, x, true, to.normed, width);
        float *const gate = to.gate, *const up = gate + BLOCK * PANEL;
        for (long p = own.begin(all); p < own.end(all); p++) {
            panels::multiply_panel(layer.gate, p, to.normed, width, gate, PANEL, rows);
            panels::multiply_panel(layer.up, p, to.normed, width, up, PANEL, rows);
            const long first = p * PANEL, columns = std::min(PANEL, inner - first);
            for (long row = 0; row < rows; row++)
                rows::silu_mul(gate + row * PANEL, up + row * PANEL, to.wide + row * inner + first, columns);
        }
        wait();
        multiply(layer.down, to.wide, to.sum);
    }

    // What comes in front of attention, for the rows from `first` on of the step.
    void before(const Layer &layer, float *x, bool more, const Step &step, long first) const {
        norm(layer.before, x, more, to.normed, layer.qkv.depth);
        multiply(layer.qkv, to.normed, to.wide);
        const long dim = layer.heads.dim, q_row = layer.heads.q * dim, kv_row = layer.heads.kv * dim;
        each_row([&](long row) {
            const long at = first + row;
            rows::turn(layer.heads, to.wide + row * layer.qkv.n, step.cos + at * dim, step.sin + at * dim,
                       step.q + at * q_row, step.k + at * kv_row, step.v + at * kv_row);
        });
    }
};

}  // namespace

extern "C" {

// Floats of scratch memory that a thread takes; of `widest` columns are qkv's product, or gate's.
long scratch(long width, long widest) { return Buffers::size(width, widest); }

// x [rows, width], in place, from attention's answer in layer `done` to q, k and v of layer `next`. In front of the first
// layer there is no `done`; behind the last there is no `next`, and x is normalised where there is a `last`.
void between(const Layer *done, const Layer *next, const Norm *last, const Step *step, float *x, const float *answer) {
    const Layer &either = done ? *done : *next;
    const long width = either.out.n, most = widest(either), size = Buffers::size(width, most), all = step->rows;
    const bool alone = step->threads == 1 || all >= ALONE * step->threads;
#pragma omp parallel num_threads(int(step->threads)) if (step->threads > 1)
    {
        const Share here = {omp_get_thread_num(), omp_get_num_threads()};
        float *const own = step->scratch + here.index * size;
        const Buffers buffers(alone ? own : step->scratch, own, width, most);
        const long begin = alone ? here.begin(all) : 0, end = alone ? here.end(all) : all;
        const Share blocks = {0, (end - begin + BLOCK - 1) / BLOCK};
        for (Share block = blocks; block.index < block.count; block.index++) {
            const long first = begin + block.begin(end - begin), rows = begin + block.end(end - begin) - first;
            const Team team = {alone ? Share{0, 1} : here, buffers, rows};
            float *const at = x + first * width;
            if (done) team.after(*done, at, answer + first * done->out.depth);
            if (next) team.before(*next, at, done, *step, first);
            else if (last) team.norm(*last, at, true, step->normed + first * width, width);
            else team.each_row([&](long row) { rows::add(at + row * width, buffers.sum + row * width, width); });
        }
    }
}

}  // extern "C"
