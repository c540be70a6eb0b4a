// /// opbench
// title    = "one thread per row, two passes over it"
// tune     = { BLOCK = [64, 128, 256] }
// define   = { BF16 = "dtype == 'bf16'" }
// supports = { dtype = ["f32", "bf16"] }
//
// [[launch]]
// kernel = "softmax_backward_thread_per_row"
// grid   = ["cdiv(rows, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant: a thread sums out * dout over its row, and then computes dx = out * (dout - sum). Limits:
// neighbouring threads read a whole row apart, so each fetches a sector of its own; both arrays are read twice; few
// rows leave most of the GPU idle.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void softmax_backward_thread_per_row(const T* __restrict__ out, const T* __restrict__ dout,
                                                           T* __restrict__ dx, int rows, int cols) {
    // out, dout, dx [rows][cols]
    const int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= rows) return;
    const size_t base = (size_t)row * cols;
    float sum = 0.0f;
    for (int c = 0; c < cols; ++c) sum += (float)out[base + c] * (float)dout[base + c];
    for (int c = 0; c < cols; ++c) dx[base + c] = (T)((float)out[base + c] * ((float)dout[base + c] - sum));
}
