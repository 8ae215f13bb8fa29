// Products of few to many rows with a weight that was packed once, y = x Wᵀ + b, by AVX-512: see rtk/model/panels.py.
//
// A pack is a row of panels, each of PANEL columns of the product: line by line, for every k the weights of all columns,
// so that it is read from end to end. A tile is up to ROWS rows of a panel, and stays in registers for all k of a pass.
// The panel comes from memory for the first tile of a pass and from the second-level cache for the others, and meanwhile
// these fetch what comes after it: reading the weights and computing go on at the same time.

#pragma once

#include <algorithm>

#include <immintrin.h>

#if !defined(__AVX512F__)
#error "these kernels are written for AVX-512"
#endif

namespace panels {

using Vec = __m512;
constexpr long WIDTH = 16, ROWS = 8, VECS = 3, PANEL = VECS * WIDTH;
constexpr long DEPTH = 1536;   // k of one pass: what a panel has of them stays in the second-level cache,
constexpr long SHALLOW = 192;  // and with many tiles in the first-level one
constexpr long MANY = 6;
constexpr long HEIGHT = 256;  // rows of one walk through the panels: they stay in the second-level cache
constexpr long AHEAD = 32;    // k that a tile which is alone fetches ahead

// R rows of x by a panel to `columns` columns of y; in front of each k, F lines of 64 bytes of `next` are fetched. Unless
// it is the first pass, y has the sums so far, and these are gone on with: sums do not depend on where passes end. `bias`
// is added by the last pass, null in others.
template <int R, int F>
void tile(const float *x, long x_row, const float *panel, long depth, const float *next, float *y, long y_row, long columns,
          const float *bias, bool first) {
    __mmask16 there[VECS];
#pragma GCC unroll 8
    for (int v = 0; v < VECS; v++) {
        const long left = columns - v * WIDTH;
        there[v] = left >= WIDTH ? 0xffff : left > 0 ? (1u << left) - 1 : 0;
    }
    Vec sum[R][VECS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECS; v++)
            sum[r][v] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(there[v], y + r * y_row + v * WIDTH);
    for (long k = 0; k < depth; k++) {
        Vec weights[VECS];
#pragma GCC unroll 8
        for (int v = 0; v < VECS; v++) weights[v] = _mm512_loadu_ps(panel + k * PANEL + v * WIDTH);
#pragma GCC unroll 8
        for (int f = 0; f < F; f++)
            _mm_prefetch(reinterpret_cast<const char *>(next + (k * F + f) * WIDTH), _MM_HINT_T1);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const Vec value = _mm512_set1_ps(x[r * x_row + k]);
#pragma GCC unroll 8
            for (int v = 0; v < VECS; v++) sum[r][v] = _mm512_fmadd_ps(value, weights[v], sum[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECS; v++) {
            const Vec found = bias ? _mm512_add_ps(sum[r][v], _mm512_loadu_ps(bias + v * WIDTH)) : sum[r][v];
            _mm512_mask_storeu_ps(y + r * y_row + v * WIDTH, there[v], found);
        }
}

using Tile = void (*)(const float *, long, const float *, long, const float *, float *, long, long, const float *, bool);

template <int F>
Tile of(long rows) {
    static constexpr Tile tiles[] = {nullptr,    tile<1, F>, tile<2, F>, tile<3, F>, tile<4, F>,
                                     tile<5, F>, tile<6, F>, tile<7, F>, tile<8, F>};
    return tiles[rows];
}

struct Pack {
    const float *weights;  // [panels, depth, PANEL]
    const float *bias;     // [panels * PANEL], or null
    long n, depth;         // columns of the product, and what is summed over
};

// Panels of so many columns.
inline long count(long columns) { return (columns + PANEL - 1) / PANEL; }

// x [rows <= HEIGHT, depth], its rows x_row apart, to the columns of panel p, which y begins with; its rows are y_row apart.
inline void multiply_panel(const Pack &pack, long p, const float *x, long x_row, float *y, long y_row, long rows) {
    const long depth = pack.depth, columns = std::min(PANEL, pack.n - p * PANEL);
    const long tiles = (rows + ROWS - 1) / ROWS, pass = tiles < MANY ? DEPTH : SHALLOW;
    for (long k = 0; k < depth; k += pass) {
        const long deep = std::min(pass, depth - k);
        const float *const panel = pack.weights + (p * depth + k) * PANEL;
        const float *const after = panel + deep * PANEL;
        const float *const bias = pack.bias && k + deep == depth ? pack.bias + p * PANEL : nullptr;
        for (long t = 0; t < tiles; t++) {
            const long begin = t * rows / tiles, count = (t + 1) * rows / tiles - begin;
            // All tiles of a pass together fetch what comes after it; one that is alone goes ahead in its own.
            const Tile compute = tiles == 1 ? of<3>(count) : tiles == 2 ? of<2>(count) : t < 3 ? of<1>(count) : of<0>(count);
            const float *const next = tiles == 1   ? panel + AHEAD * PANEL
                                      : tiles == 2 ? after + t * deep * 2 * WIDTH
                                                   : after + t * deep * WIDTH;
            compute(x + begin * x_row + k, x_row, panel, deep, next, y + begin * y_row, y_row, columns, bias, k == 0);
        }
    }
}

// One of `count` threads that do something together.
struct Share {
    long index, count;
    long begin(long of) const { return of * index / count; }
    long end(long of) const { return of * (index + 1) / count; }
};

// A thread's share of the product of x [rows, depth], its rows x_row apart, to y [rows, n], contiguous. What an element of
// y is depends on its row of x alone: not on the number of threads, nor on what else is computed with it.
inline void multiply(const Pack &pack, Share own, const float *x, long x_row, float *y, long rows) {
    const long n = pack.n, panels = count(n);
    for (long top = 0; top < rows; top += HEIGHT)
        for (long p = own.begin(panels); p < own.end(panels); p++)
            multiply_panel(pack, p, x + top * x_row, x_row, y + top * n + p * PANEL, n, std::min(HEIGHT, rows - top));
}

}  // namespace panels
