// What a fused layer does between its linear layers, one pass each: see rtk/model/kernels.py.
//
// Rows are contiguous float32. NaN and infinity come out where they would come out of the same arithmetic in torch.

#include <cmath>
#include <cstdint>
#include <cstring>

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

// e to the x, to 1e-7 relative, as code that a compiler turns into vectors. NaN stays; what overflows is infinite, and
// what is below the smallest normal number 0.
inline float exponential(float x) {
    constexpr float LOG2_E = 1.44269504f, LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f, SHIFT = 12582912.0f;
    float y = x > 88.0f ? 88.0f : x;
    y = y < -87.0f ? -87.0f : y;
    const float shifted = y * LOG2_E + SHIFT;  // its lowest bits are the nearest integer
    const float n = shifted - SHIFT;
    const float r = (y - n * LN2_HIGH) - n * LN2_LOW;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    p *= power;
    p = x > 88.0f ? p * 3.0e38f : p;
    return x < -87.0f ? 0.0f : p;
}

inline float length(const float *x, int64_t width, float least) {
    float sum = least * least;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; i++) sum += x[i] * x[i];
    return std::sqrt(sum);
}

}  // namespace

extern "C" {

// x += y, where there is a y; out = x / hypot(|x|, least), times the weight where there is one. [rows, width] each.
void add_norm(float *x, const float *y, const float *weight, float *out, int64_t rows, int64_t width, float least) {
    each_row(rows, width, [=](int64_t row) {
        float *own = x + row * width, *to = out + row * width;
        if (y) {
            const float *more = y + row * width;
#pragma omp simd
            for (int64_t i = 0; i < width; i++) own[i] += more[i];
        }
        const float over = length(own, width, least);
        if (weight) {
#pragma omp simd
            for (int64_t i = 0; i < width; i++) to[i] = own[i] / over * weight[i];
        } else {
#pragma omp simd
            for (int64_t i = 0; i < width; i++) to[i] = own[i] / over;
        }
    });
}

// qkv [rows, q_heads + 2 * kv_heads, dim] to q, k and v [rows, heads, dim]: q and k are normalised, where there is a
// weight [q_heads + kv_heads, dim], and turned by cos and sin [rows, dim].
void turn(const float *qkv, const float *cos, const float *sin, const float *weight, float *q, float *k, float *v,
          int64_t rows, int64_t q_heads, int64_t kv_heads, int64_t dim, float least) {
    const int64_t heads = q_heads + 2 * kv_heads, turned = q_heads + kv_heads, half = dim / 2;
    each_row(rows, heads * dim, [=](int64_t row) {
        const float *c = cos + row * dim, *s = sin + row * dim;
        for (int64_t head = 0; head < turned; head++) {
            const float *low = qkv + (row * heads + head) * dim, *high = low + half;
            float *to = head < q_heads ? q + (row * q_heads + head) * dim : k + (row * kv_heads + head - q_heads) * dim;
            if (weight) {
                const float over = length(low, dim, least), *w = weight + head * dim;
#pragma omp simd
                for (int64_t i = 0; i < half; i++) {
                    const float a = low[i] / over * w[i], b = high[i] / over * w[half + i];
                    to[i] = a * c[i] - b * s[i];
                    to[half + i] = b * c[half + i] + a * s[half + i];
                }
            } else {
#pragma omp simd
                for (int64_t i = 0; i < half; i++) {
                    const float a = low[i], b = high[i];
                    to[i] = a * c[i] - b * s[i];
                    to[half + i] = b * c[half + i] + a * s[half + i];
                }
            }
        }
        const int64_t rest = kv_heads * dim;
        std::memcpy(v + row * rest, qkv + (row * heads + turned) * dim, rest * sizeof(float));
    });
}

// out [rows, width] = silu(gate) * up of gate_up [rows, 2 * width].
void silu_mul(const float *gate_up, float *out, int64_t rows, int64_t width) {
    each_row(rows, width, [=](int64_t row) {
        const float *gate = gate_up + row * 2 * width, *up = gate + width;
        float *to = out + row * width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) to[i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
    });
}

}  // extern "C"
