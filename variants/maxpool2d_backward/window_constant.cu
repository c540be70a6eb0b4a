// /// opbench
// title     = "window, stride and sizes as compile-time constants: the loads of a search are in flight together"
// builds_on = "gather"
// mechanism = ["coalesced", "unrolled", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512] }
// requires  = ["n * c * h * w <= 4294966272", "c * h * w < 2 ** 31", "cdiv(window, stride) * window <= 16"]
//
// [supports]
// layout   = ["nchw", "nhwc"]
// dtype    = ["f32", "bf16"]
// epilogue = ["none", "add", "mask"]
//
// [define]
// BF16    = "dtype == 'bf16'"
// NHWC    = "layout == 'nhwc'"
// ADD     = "epilogue == 'add'"
// MASK    = "epilogue == 'mask'"
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
// kernel = "maxpool2d_backward_window_constant"
// grid   = ["cdiv(n * c * h * w, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The loops over the windows that contain a pixel, and over the elements of a window, are unrolled, and divisions
// become multiplications. If windows do not overlap, each pixel searches only one. Limits: a window is still searched
// once for each of its pixels, from the L1 cache; one element per load and store.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int OVER = (WINDOW + STRIDE - 1) / STRIDE;  // windows that may cover a pixel, along one axis

extern "C" __global__ void __launch_bounds__(BLOCK)
    maxpool2d_backward_window_constant(const T* __restrict__ x, const T* __restrict__ dout,
#if ADD
                                       const T* __restrict__ skip,
#endif
                                       T* __restrict__ dx, int n, int c, int h, int w, int window, int stride,
                                       int padding) {
    // x, skip, dx [n][C][H][W] or [n][H][W][C], fewer than 2^32 elements; dout [n][C][P][Q] or [n][P][Q][C]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (C * H * W)) return;
#if NHWC
    constexpr int STEP = C;  // from one pixel to the next
    const unsigned pixel = i / C % (H * W), image = i / C / (H * W);
    const T* source = x + (size_t)image * (H * W * C) + i % C;
    const T* gradient = dout + (size_t)image * (P * Q * C) + i % C;
#else
    constexpr int STEP = 1;
    const unsigned pixel = i % (H * W), plane = i / (H * W);
    const T* source = x + (size_t)plane * (H * W);
    const T* gradient = dout + (size_t)plane * (P * Q);
#endif
    const int y = (int)(pixel / W) + PADDING, z = (int)(pixel % W) + PADDING;  // in the padded image
    const int last_row = y / STRIDE, last_column = z / STRIDE;  // the last window that starts at or before the pixel
    float sum = 0.0f;
#pragma unroll
    for (int a = OVER - 1; a >= 0; --a) {
#pragma unroll
        for (int b = OVER - 1; b >= 0; --b) {
            const int row = last_row - a, column = last_column - b;
            const int r0 = y - row * STRIDE, s0 = z - column * STRIDE;  // the pixel's position in the window
            if (row < 0 || row >= P || column < 0 || column >= Q || r0 >= WINDOW || s0 >= WINDOW) continue;
            float largest = __int_as_float(0xff800000);  // -infinity
            int place = -1;
#pragma unroll
            for (int r = 0; r < WINDOW; ++r) {
#pragma unroll
                for (int s = 0; s < WINDOW; ++s) {
                    const int u = row * STRIDE - PADDING + r, v = column * STRIDE - PADDING + s;
                    if (PADDING > 0 && ((unsigned)u >= H || (unsigned)v >= W)) continue;
                    const float value = (float)source[(u * W + v) * STEP];
                    if (value > largest) {
                        largest = value;
                        place = r * WINDOW + s;
                    }
                }
            }
            if (place == r0 * WINDOW + s0) sum += (float)gradient[(row * Q + column) * STEP];
        }
    }
#if ADD
    sum += (float)skip[i];
#elif MASK
    if (!((float)x[i] > 0.0f)) sum = 0.0f;
#endif
    dx[i] = (T)sum;
}
