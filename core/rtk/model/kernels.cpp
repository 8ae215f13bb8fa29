// What a fused layer does between its linear layers, one pass each: see rtk/model/kernels.py.

#include "rows.h"

namespace {

// Calls `body` with every row, by several threads where the rows are so large that a second one gains more than waking
// it costs.
template <class Body>
inline void each_row(int64_t rows, int64_t width, Body body) {
    if (rows > 1 && rows * width >= 1 << 15) {
#pragma omp parallel for
        for (int64_t row = 0; row < rows; row++) body(row);
    } else {
        for (int64_t row = 0; row < rows; row++) body(row);
    }
}

}  // namespace

extern "C" {

// x += y, where there is a y; out = norm of x. [rows, width] each.
void add_norm(float *x, const float *y, const float *weight, float *out, int64_t rows, int64_t width, float least) {
    each_row(rows, width, [=](int64_t row) {
        float *own = x + row * width;
        if (y) rows::add(own, y + row * width, width);
        rows::norm(own, weight, out + row * width, width, least);
    });
}

// qkv [rows, q_heads + 2 * kv_heads, dim] to q, k and v [rows, heads, dim], by cos and sin [rows, dim].
void turn(const float *qkv, const float *cos, const float *sin, const float *weight, float *q, float *k, float *v,
          int64_t rows, int64_t q_heads, int64_t kv_heads, int64_t dim, float least) {
    const rows::Heads heads = {q_heads, kv_heads, dim, weight, least};
    const int64_t q_row = q_heads * dim, kv_row = kv_heads * dim, qkv_row = q_row + 2 * kv_row;
    each_row(rows, qkv_row, [=](int64_t row) {
        rows::turn(heads, qkv + row * qkv_row, cos + row * dim, sin + row * dim, q + row * q_row, k + row * kv_row,
                   v + row * kv_row);
    });
}

// out [rows, width] = silu(gate) * up of gate_up [rows, 2 * width].
void silu_mul(const float *gate_up, float *out, int64_t rows, int64_t width) {
    each_row(rows, width, [=](int64_t row) {
        const float *gate = gate_up + row * 2 * width;
        rows::silu_mul(gate, gate + width, out + row * width, width);
    });
}

}  // extern "C"
