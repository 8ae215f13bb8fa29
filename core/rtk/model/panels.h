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

// R rows of x by a panel to `columns` columns of y; in front of each k, F lines of 64 bytes of `next` are fetched.
template <int R, int F>
void tile(const float *x, long x_row, const float *panel, long depth, const float *next, float *y, long y_row, long columns,
          const float *bias, bool first) {
    Vec sum[R][VECS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECS; v++) sum[r][v] = _mm512_setzero_ps();
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
    for (int r = 0; r < R; r++) {
        float *const out = y + r * y_row;
#pragma GCC unroll 8
        for (int v = 0; v < VECS; v++) {
            const long left = columns - v * WIDTH;
            const __mmask16 there = left >= WIDTH ? 0xffff : left > 0 ? (1u << left) - 1 : 0;
            const Vec before = !first ? _mm512_maskz_loadu_ps(there, out + v * WIDTH)
                               : bias ? _mm512_loadu_ps(bias + v * WIDTH)
                                      : _mm512_setzero_ps();
            _mm512_mask_storeu_ps(out + v * WIDTH, there, _mm512_add_ps(sum[r][v], before));
        }
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

// x [rows, depth], its rows x_row apart, to y [rows, n], contiguous. All threads of a team call it; nobody waits for the
// others in the end. What an element of y is does not depend on their number.
inline void multiply(const Pack &pack, const float *x, long x_row, float *y, long rows) {
    const long n = pack.n, depth = pack.depth, panels = (n + PANEL - 1) / PANEL;
    for (long top = 0; top < rows; top += HEIGHT) {
        const long height = std::min(HEIGHT, rows - top), tiles = (height + ROWS - 1) / ROWS;
        const long pass = tiles < MANY ? DEPTH : SHALLOW;
#pragma omp for schedule(static) nowait
        for (long p = 0; p < panels; p++)
            for (long k = 0; k < depth; k += pass) {
                const long deep = std::min(pass, depth - k);
                const float *const panel = pack.weights + (p * depth + k) * PANEL;
                const float *const after = panel + deep * PANEL;
                for (long t = 0; t < tiles; t++) {
                    const long begin = t * height / tiles, count = (t + 1) * height / tiles - begin;
                    const float *const from = x + (top + begin) * x_row + k;
                    float *const to = y + (top + begin) * n + p * PANEL;
                    const long columns = std::min(PANEL, n - p * PANEL);
                    const float *const added = pack.bias ? pack.bias + p * PANEL : nullptr;
                    // All tiles of a pass together fetch what comes after it; one that is alone goes ahead in its own.
                    const Tile compute = tiles == 1 ? of<3>(count) : tiles == 2 ? of<2>(count) : t < 3 ? of<1>(count) : of<0>(count);
                    const float *const next = tiles == 1   ? panel + AHEAD * PANEL
                                              : tiles == 2 ? after + t * deep * 2 * WIDTH
                                                           : after + t * deep * WIDTH;
                    compute(from, x_row, panel, deep, next, to, n, columns, added, k == 0);
                }
            }
    }
}

}  // namespace panels
