// The functions of panels.h that rtk/model/panels.py calls.

#include "panels.h"

using namespace panels;

extern "C" {

long panel_columns() { return PANEL; }

// weight [n, depth], contiguous, to [panels, depth, PANEL]; columns beyond n are zero.
void pack(const float *weight, float *packed, long n, long depth, long threads) {
#pragma omp parallel for num_threads(int(threads))
    for (long p = 0; p < (n + PANEL - 1) / PANEL; p++)
        for (long k = 0; k < depth; k++)
            for (long j = 0; j < PANEL; j++) {
                const long column = p * PANEL + j;
                packed[(p * depth + k) * PANEL + j] = column < n ? weight[column * depth + k] : 0;
            }
}

// See `multiply`; weights and bias are those of a pack.
void product(const float *x, long x_row, const float *packed, const float *bias, float *y, long rows, long n, long depth,
             long threads) {
#pragma omp parallel num_threads(int(threads)) if (threads > 1)
    multiply({packed, bias, n, depth}, x, x_row, y, rows);
}
}
