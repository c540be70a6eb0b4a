// /// opbench
// title     = "window, stride and sizes as compile-time constants: loads in flight together, no division"
// builds_on = "gather"
// mechanism = ["coalesced", "unrolled", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512] }
// requires  = ["n * c * h * w <= 4294966272", "c * p * q <= 2147483647", "cdiv(window, stride) <= 5"]
//
// [supports]
// layout  = ["nchw", "nhwc"]
// dtype   = ["f32", "bf16"]
// divisor = ["window", "inside"]
//
// [define]
// BF16    = "dtype == 'bf16'"
// NHWC    = "layout == 'nhwc'"
// INSIDE  = "divisor == 'inside'"
// WINDOW  = "window"
// STRIDE  = "stride"
// PADDING = "padding"
// C       = "c"
// H       = "h"
// W       = "w"
// P       = "p"
// Q       = "q"
//
// [[launch]]
// kernel = "avgpool2d_backward_window_constant"
// grid   = ["cdiv(n * c * h * w, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["dout", "dx", "n"]
// ///
//
// The loops over the windows that cover a pixel are unrolled, and divisions become multiplications; windows that do not
// overlap cost one load per pixel. Limits: one element per load and store.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int OVER = (WINDOW + STRIDE - 1) / STRIDE;  // windows that may cover a pixel, along one axis

// Return how many positions of a window count along one axis.
__device__ __forceinline__ int positions(int window, int size) {
#if INSIDE && PADDING > 0
    const int first = window * STRIDE - PADDING;
    return min(first + WINDOW, size) - max(first, 0);
#else
    return WINDOW;
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    avgpool2d_backward_window_constant(const T* __restrict__ dout, T* __restrict__ dx, int n) {
    // dout [n][C][P][Q] or [n][P][Q][C]; dx [n][C][H][W] or [n][H][W][C], fewer than 2^32 elements
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (C * H * W)) return;
#if NHWC
    constexpr int STEP = C;  // from one pixel to the next
    const unsigned pixel = i / C % (H * W);
    const T* gradient = dout + (size_t)(i / C / (H * W)) * (P * Q * C) + i % C;
#else
    constexpr int STEP = 1;
    const unsigned pixel = i % (H * W);
    const T* gradient = dout + (size_t)(i / (H * W)) * (P * Q);
#endif
    const int y = (int)(pixel / W) + PADDING, z = (int)(pixel % W) + PADDING;  // in the padded image
    float sum = 0.0f;
#pragma unroll
    for (int a = OVER - 1; a >= 0; --a) {
#pragma unroll
        for (int b = OVER - 1; b >= 0; --b) {
            const int row = y / STRIDE - a, column = z / STRIDE - b;
            const bool covers = y - row * STRIDE < WINDOW && z - column * STRIDE < WINDOW;
            if (!covers || row < 0 || row >= P || column < 0 || column >= Q) continue;
            sum += (float)gradient[(row * Q + column) * STEP] / (float)(positions(row, H) * positions(column, W));
        }
    }
    dx[i] = (T)sum;
}
