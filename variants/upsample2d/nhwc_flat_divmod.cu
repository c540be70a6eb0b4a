// /// opbench
// title    = "nhwc: one thread per output, threadIdx.x along the channels, scale known at run time"
// mechanism = ["coalesced", "flat_index"]
// tune     = { BLOCK = [256, 128, 512] }
// define   = { BF16 = "dtype == 'bf16'", BILINEAR = "mode == 'bilinear'" }
// supports = { mode = ["nearest", "bilinear"], layout = ["nhwc"], dtype = ["f32", "bf16"] }
// requires = ["n * c * p * q <= 4294966272"]
//
// [[launch]]
// kernel = "upsample2d_nhwc_flat_divmod"
// grid   = ["cdiv(n * c * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n", "c", "h", "w", "scale"]
// ///
//
// The first variant for nhwc. Neighbouring threads compute neighbouring channels of one pixel, so every load and store
// of a warp is coalesced, and all channels of a pixel have the same interpolation weights. Limits: five integer
// divisions per output by sizes known only at run time, three for its coordinates and two for its source pixel; each
// load and store moves one element.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void upsample2d_nhwc_flat_divmod(const T* __restrict__ x, T* __restrict__ out, int n, int c,
                                                       int h, int w, int scale) {
    // x [n][h][w][c]; out [n][h * scale][w * scale][c], fewer than 2^32 elements
    const unsigned p = (unsigned)h * scale, q = (unsigned)w * scale;
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * p * q * (unsigned)c) return;
    const unsigned channel = i % (unsigned)c, pixel = i / (unsigned)c;
    const int column = (int)(pixel % q), row = (int)(pixel / q % p);
    const T* image = x + (size_t)(pixel / q / p) * h * w * c + channel;
#if BILINEAR
    // The position in units of half an output pixel; in these units it is a whole number.
    const int down = max(2 * row + 1 - scale, 0), along = max(2 * column + 1 - scale, 0);
    const int top = down / (2 * scale), left = along / (2 * scale);
    const float lower = (float)(down - top * 2 * scale) / (2 * scale);
    const float right = (float)(along - left * 2 * scale) / (2 * scale);
    const T* above = image + (size_t)top * w * c;
    const T* below = image + (size_t)min(top + 1, h - 1) * w * c;
    const size_t here = (size_t)left * c, next = (size_t)min(left + 1, w - 1) * c;
    const float first = (float)above[here] * (1 - right) + (float)above[next] * right;
    const float second = (float)below[here] * (1 - right) + (float)below[next] * right;
    out[i] = (T)(first * (1 - lower) + second * lower);
#else
    out[i] = image[((size_t)(row / scale) * w + column / scale) * c];
#endif
}
