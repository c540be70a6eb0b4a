// /// opbench
// title    = "one thread per output, flat grid: coordinates by division and remainder"
// mechanism = ["coalesced", "flat_index"]
// tune     = { BLOCK = [256, 128, 512] }
// define   = { BF16 = "dtype == 'bf16'", BILINEAR = "mode == 'bilinear'" }
// supports = { mode = ["nearest", "bilinear"], dtype = ["f32", "bf16"] }
// requires = ["n * c * p * q <= 4294966272"]
//
// [[launch]]
// kernel = "upsample2d_flat_divmod"
// grid   = ["cdiv(n * c * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n * c", "h", "w", "scale"]
// ///
//
// The first variant: consecutive threads write consecutive outputs, and each input is read scale * scale times, mostly
// from the L1 cache. Limits: four integer divisions per output by sizes known only at run time, some twenty
// instructions each (two for the coordinates of the output, two for its source pixel); each load and store moves one
// element.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void upsample2d_flat_divmod(const T* __restrict__ x, T* __restrict__ out, int planes, int h,
                                                  int w, int scale) {
    // x [planes][h][w]; out [planes][h * scale][w * scale], fewer than 2^32 elements
    const unsigned p = (unsigned)h * scale, q = (unsigned)w * scale;
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)planes * p * q) return;
    const int column = (int)(i % q), row = (int)(i / q % p);
    const T* image = x + (size_t)(i / q / p) * h * w;
#if BILINEAR
    // The position in units of half an output pixel; in these units it is a whole number.
    const int down = max(2 * row + 1 - scale, 0), along = max(2 * column + 1 - scale, 0);
    const int top = down / (2 * scale), left = along / (2 * scale);
    const float lower = (float)(down - top * 2 * scale) / (2 * scale);
    const float right = (float)(along - left * 2 * scale) / (2 * scale);
    const T* above = image + (size_t)top * w;
    const T* below = image + (size_t)min(top + 1, h - 1) * w;
    const int next = min(left + 1, w - 1);
    const float first = (float)above[left] * (1 - right) + (float)above[next] * right;
    const float second = (float)below[left] * (1 - right) + (float)below[next] * right;
    out[i] = (T)(first * (1 - lower) + second * lower);
#else
    out[i] = image[(size_t)(row / scale) * w + column / scale];
#endif
}
