// What a layer computes between its products, a row at a time: of kernels.cpp and layers.cpp.
//
// Rows are contiguous float32. NaN and infinity come out where they would come out of the same arithmetic in torch.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace rows {

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

// x += y.
inline void add(float *x, const float *y, int64_t width) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) x[i] += y[i];
}

// out = x / hypot(|x|, least), times the weight where there is one.
inline void norm(const float *x, const float *weight, float *out, int64_t width, float least) {
    const float over = length(x, width, least);
    if (weight) {
#pragma omp simd
        for (int64_t i = 0; i < width; i++) out[i] = x[i] / over * weight[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < width; i++) out[i] = x[i] / over;
    }
}

// How q, k and v lie beside each other, and the norm of q's heads and k's.
struct Heads {
    int64_t q, kv, dim;
    const float *weight;  // [q + kv, dim], or null: there is no norm
    float least;
};

// qkv [q + 2 * kv heads, dim] to q, k and v [heads, dim]: q and k are normalised, and turned by cos and sin [dim].
inline void turn(const Heads &heads, const float *qkv, const float *cos, const float *sin, float *q, float *k, float *v) {
    const int64_t turned = heads.q + heads.kv, dim = heads.dim, half = dim / 2;
    for (int64_t head = 0; head < turned; head++) {
        const float *low = qkv + head * dim, *high = low + half;
        float *to = head < heads.q ? q + head * dim : k + (head - heads.q) * dim;
        if (heads.weight) {
            const float over = length(low, dim, heads.least), *w = heads.weight + head * dim;
#pragma omp simd
            for (int64_t i = 0; i < half; i++) {
                const float a = low[i] / over * w[i], b = high[i] / over * w[half + i];
                to[i] = a * cos[i] - b * sin[i];
                to[half + i] = b * cos[half + i] + a * sin[half + i];
            }
        } else {
#pragma omp simd
            for (int64_t i = 0; i < half; i++) {
                const float a = low[i], b = high[i];
                to[i] = a * cos[i] - b * sin[i];
                to[half + i] = b * cos[half + i] + a * sin[half + i];
            }
        }
    }
    std::memcpy(v, qkv + turned * dim, heads.kv * dim * sizeof(float));
}

// out = silu(gate) * up.
inline void silu_mul(const float *gate, const float *up, float *out, int64_t width) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) out[i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
}

}  // namespace rows
