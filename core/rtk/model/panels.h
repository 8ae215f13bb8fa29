// Products of few to many rows with a weight that was packed once, y = x Wᵀ + b, by AVX-512: see rtk/model/panels.py.
//
// A pack is a row of panels, each of PANEL columns of the product: line by line, for every k the weights of all columns,
// so that it is read from end to end. A tile is up to ROWS rows of a panel, and stays in registers for all k of a pass.
// The panel comes from memory for the first tile of a pass and from the second-level cache for the others, and meanwhile
// these fetch what comes after it: reading the weights and computing go on at the same time.
//
// Weights may be integers of 8 bits, which mean integer * scale; each column has a scale for every GROUP of its k. They
// become float32 on the way into a tile's registers, beside its other work, and all else is float32.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

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
constexpr long GROUP = 128;   // k that a scale is for, and of a pass with scales

// Weights of a line of the cache.
template <class Weight>
constexpr long LINE = 64 / sizeof(Weight);

inline Vec load(const float *weights) { return _mm512_loadu_ps(weights); }

inline Vec load(const int8_t *weights) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(weights))));
}

// R rows of x by a panel to `columns` columns of y; in front of each k, F lines of `next` are fetched. Unless it is the
// first pass, y has the sums so far, and these are gone on with: sums do not depend on where passes end. With `scales` a
// pass has a sum of its own, which is multiplied by them. `bias` is added by the last pass, null in others.
template <int R, int F, class Weight>
void tile(const float *x, long x_row, const Weight *panel, const float *scales, long depth, const Weight *next, float *y,
          long y_row, long columns, const float *bias, bool first) {
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
            sum[r][v] = first || scales ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(there[v], y + r * y_row + v * WIDTH);
    for (long k = 0; k < depth; k++) {
        Vec weights[VECS];
#pragma GCC unroll 8
        for (int v = 0; v < VECS; v++) weights[v] = load(panel + k * PANEL + v * WIDTH);
#pragma GCC unroll 8
        for (int f = 0; f < F; f++)
            _mm_prefetch(reinterpret_cast<const char *>(next + (k * F + f) * LINE<Weight>), _MM_HINT_T1);
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
            float *const out = y + r * y_row + v * WIDTH;
            Vec found = sum[r][v];
            if (scales) {
                const Vec before = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(there[v], out);
                found = _mm512_fmadd_ps(found, _mm512_loadu_ps(scales + v * WIDTH), before);
            }
            if (bias) found = _mm512_add_ps(found, _mm512_loadu_ps(bias + v * WIDTH));
            _mm512_mask_storeu_ps(out, there[v], found);
        }
}

template <class Weight>
using Tile = void (*)(const float *, long, const Weight *, const float *, long, const Weight *, float *, long, long,
                      const float *, bool);

template <int F, class Weight>
Tile<Weight> of(long rows) {
    static constexpr Tile<Weight> tiles[] = {
        nullptr,
        tile<1, F, Weight>, tile<2, F, Weight>, tile<3, F, Weight>, tile<4, F, Weight>,
        tile<5, F, Weight>, tile<6, F, Weight>, tile<7, F, Weight>, tile<8, F, Weight>,
    };
    return tiles[rows];
}

struct Pack {
    const float *weights;  // [panels, depth, PANEL], or null: they are integers
    const int8_t *ints;    // [panels, depth, PANEL], or null
    const float *scales;   // of integers, [panels, groups of k, PANEL]
    const float *bias;     // [panels * PANEL], or null
    long n, depth;         // columns of the product, and what is summed over
};

// Panels of so many columns.
inline long count(long columns) { return (columns + PANEL - 1) / PANEL; }

// See below; of a panel's weights.
template <class Weight>
void multiply_panel(const Pack &pack, const Weight *weights, long p, const float *x, long x_row, float *y, long y_row,
                    long rows) {
    constexpr bool scaled = std::is_same_v<Weight, int8_t>;
    const long depth = pack.depth, columns = std::min(PANEL, pack.n - p * PANEL);
    const long tiles = (rows + ROWS - 1) / ROWS, pass = scaled ? GROUP : tiles < MANY ? DEPTH : SHALLOW;
    const float *scales = scaled ? pack.scales + p * PANEL * ((depth + GROUP - 1) / GROUP) : nullptr;
    for (long k = 0; k < depth; k += pass) {
        const long deep = std::min(pass, depth - k);
        const Weight *const panel = weights + k * PANEL, *const after = panel + deep * PANEL;
        const float *const bias = pack.bias && k + deep == depth ? pack.bias + p * PANEL : nullptr;
        for (long t = 0; t < tiles; t++) {
            const long begin = t * rows / tiles, count = (t + 1) * rows / tiles - begin;
            // All tiles of a pass together fetch what comes after it; one that is alone goes ahead in its own. Of integers
            // there are so few lines that the first tile fetches them all.
            const long lines = scaled ? t == 0 : tiles == 1 ? 3 : tiles == 2 ? 2 : t < 3;
            const Weight *const next = !scaled && tiles == 1 ? panel + AHEAD * PANEL : after + t * deep * lines * LINE<Weight>;
            const Tile<Weight> compute = lines == 3   ? of<3, Weight>(count)
                                         : lines == 2 ? of<2, Weight>(count)
                                         : lines == 1 ? of<1, Weight>(count)
                                                      : of<0, Weight>(count);
            compute(x + begin * x_row + k, x_row, panel, scales, deep, next, y + begin * y_row, y_row, columns, bias, k == 0);
        }
        if (scaled) scales += PANEL;
    }
}

// x [rows <= HEIGHT, depth], its rows x_row apart, to the columns of panel p, which y begins with; its rows are y_row apart.
inline void multiply_panel(const Pack &pack, long p, const float *x, long x_row, float *y, long y_row, long rows) {
    const long at = p * pack.depth * PANEL;
    if (pack.ints) multiply_panel(pack, pack.ints + at, p, x, x_row, y, y_row, rows);
    else multiply_panel(pack, pack.weights + at, p, x, x_row, y, y_row, rows);
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
