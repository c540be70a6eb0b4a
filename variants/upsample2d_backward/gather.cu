// /// opbench
// title    = "one thread per input pixel adds the gradients of all outputs that used it"
// mechanism = ["coalesced"]
// tune     = { BLOCK = [256, 128, 512] }
// define   = { BF16 = "dtype == 'bf16'", NHWC = "layout == 'nhwc'", BILINEAR = "mode == 'bilinear'" }
// requires = ["n * c * h * w <= 4294966272"]
//
// [supports]
// layout = ["nchw", "nhwc"]
// dtype  = ["f32", "bf16"]
// mode   = ["nearest", "bilinear"]
//
// [[launch]]
// kernel = "upsample2d_backward_gather"
// grid   = ["cdiv(n * c * h * w, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant: nothing has to be cleared first, no two threads add to the same element, and each sum has the
// order of rows and columns. A weight is computed as an integer multiple of 1 / (2 scale), so it is as exact far from
// the border as near it. Limits: divisions by sizes known only at run time; one element per load, and the lanes of a
// load read addresses that are `scale` apart.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// Return the weight with which pixel `small` of `size` was used for pixel `large`.
__device__ __forceinline__ float weight(int large, int small, int size, int scale) {
#if BILINEAR
    const int away = 2 * large + 1 - scale - 2 * scale * small;  // in units of 1 / (2 scale)
    if (away < 0 ? small == 0 : small == size - 1) return 1.0f;
    return (float)(2 * scale - abs(away)) / (float)(2 * scale);
#else
    return 1.0f;
#endif
}

extern "C" __global__ void upsample2d_backward_gather(const T* __restrict__ dout, T* __restrict__ dx, int n, int c,
                                                      int h, int w, int scale) {
    // dout [n][c][p][q] or [n][p][q][c]; dx [n][c][h][w] or [n][h][w][c], fewer than 2^32 elements; p = scale * h, q =
    // scale * w
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (unsigned)c * (unsigned)h * (unsigned)w) return;
    const int p = scale * h, q = scale * w;
    const unsigned pixels = (unsigned)h * (unsigned)w;
#if NHWC
    const unsigned pixel = i / (unsigned)c % pixels;
    const T* gradient = dout + (size_t)(i / (unsigned)c / pixels) * p * q * c + i % (unsigned)c;
    const size_t step = c;  // from one pixel to the next
#else
    const unsigned pixel = i % pixels;
    const T* gradient = dout + (size_t)(i / pixels) * p * q;
    const size_t step = 1;
#endif
    const int y = (int)(pixel / (unsigned)w), z = (int)(pixel % (unsigned)w);
#if BILINEAR
    const int reach = scale / 2;  // how far the outputs that use a pixel extend beyond its own outputs
#else
    const int reach = 0;
#endif
    const int top = max(y * scale - reach, 0), bottom = min((y + 1) * scale + reach, p);
    const int left = max(z * scale - reach, 0), right = min((z + 1) * scale + reach, q);
    float sum = 0.0f;
    for (int a = top; a < bottom; ++a) {
        float row = 0.0f;
        for (int b = left; b < right; ++b) row += weight(b, z, w, scale) * (float)gradient[((size_t)a * q + b) * step];
        sum += weight(a, y, h, scale) * row;
    }
    dx[i] = (T)sum;
}
