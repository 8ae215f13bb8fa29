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

// Memory between the products of a block, of all who compute it or of each.
struct Buffers {
    float *sum;     // of all: [BLOCK, width] what is to be added to x
    float *normed;  // of all: [BLOCK, width]
    float *wide;    // of all: [BLOCK, all heads * dim] q, k and v, or [BLOCK, inner] what goes into the MLP's last product
    float *gate;    // of each: [2, BLOCK, PANEL] one of its panels, and one of up's

    Buffers(float *all, float *each, long width, long widest)
        : sum(all), normed(sum + BLOCK * width), wide(normed + BLOCK * width), gate(each + BLOCK * (2 * width + widest)) {}
    static long size(long width, long widest) { return whole_lines(BLOCK * (2 * width + widest + 2 * PANEL)); }
};

long widest(const Layer &layer) { return std::max(layer.qkv.n, layer.gate.n); }

// Some of the threads, or one, that compute a block; all of them call every function.
struct Team {
    Share own;
    Buffers to;
    float *x;  // [rows, width]
    long rows, width;

    void wait() const {
        if (own.count > 1) {
#pragma omp barrier
        }
    }

    template <class Body>
    void each_row(Body body) const {
        for (long row = own.begin(rows); row < own.end(rows); row++) body(row);
    }

    void multiply(const Pack &pack, const float *from, float *y) const {
        panels::multiply(pack, own, from, pack.depth, y, rows);
        wait();
    }

    // x += what is to be added, unless there is nothing; its norm to where the next product reads it.
    void norm(const Norm &norm, bool more) const {
        each_row([&](long row) {
            float *const at = x + row * width;
            if (more) rows::add(at, to.sum + row * width, width);
            rows::norm(at, norm.weight, to.normed + row * width, width, norm.least);
        });
        wait();
    }

    // What comes behind attention; x is complete once what is to be added was.
    void after(const Layer &layer, const float *answer) const {
        const long inner = layer.gate.n, count = panels::count(inner);
        multiply(layer.out, answer, to.sum);
        norm(layer.between, true);
        float *const gate = to.gate, *const up = gate + BLOCK * PANEL;
        for (long p = own.begin(count); p < own.end(count); p++) {
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
    void before(const Layer &layer, bool more, const Step &step, long first) const {
        norm(layer.before, more);
        multiply(layer.qkv, to.normed, to.wide);
        const long dim = layer.heads.dim, q_row = layer.heads.q * dim, kv_row = layer.heads.kv * dim;
        each_row([&](long row) {
            const long at = first + row;
            rows::turn(layer.heads, to.wide + row * layer.qkv.n, step.cos + at * dim, step.sin + at * dim,
                       step.q + at * q_row, step.k + at * kv_row, step.v + at * kv_row);
        });
    }

    // What comes behind the last layer.
    void end(const Norm *last, float *normed) const {
        each_row([&](long row) {
            float *const at = x + row * width;
            rows::add(at, to.sum + row * width, width);
            if (last) rows::norm(at, last->weight, normed + row * width, width, last->least);
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
            const Team team = {alone ? Share{0, 1} : here, buffers, x + first * width, rows, width};
            if (block.index) team.wait();
            if (done) team.after(*done, answer + first * done->out.depth);
            if (next) team.before(*next, done, *step, first);
            else team.end(last, step->normed + first * width);
        }
    }
}

}  // extern "C"
