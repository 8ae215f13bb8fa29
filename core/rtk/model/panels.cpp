// The functions of panels.h that rtk/model/panels.py calls.

#include "panels.h"

#include <omp.h>

using namespace panels;

extern "C" {

long panel_columns() { return PANEL; }

// weight [n, depth], contiguous, to [panels, depth, PANEL]; columns beyond n are zero.
void pack(const float *weight, float *packed, long n, long depth, long threads) {
#pragma omp parallel for num_threads(int(threads))
    for (long p = 0; p < count(n); p++)
        for (long k = 0; k < depth; k++)
            for (long j = 0; j < PANEL; j++) {
                const long column = p * PANEL + j;
                packed[(p * depth + k) * PANEL + j] = column < n ? weight[column * depth + k] : 0;
            }
}

// x [rows, depth], its rows x_row apart, to y [rows, n], by so many threads.
void product(const Pack *pack, const float *x, long x_row, float *y, long rows, long threads) {
#pragma omp parallel num_threads(int(threads)) if (threads > 1)
    multiply(*pack, {omp_get_thread_num(), omp_get_num_threads()}, x, x_row, y, rows);
}
}
