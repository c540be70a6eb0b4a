// /// opbench
// title     = "nhwc: one thread per output, threadIdx.x along the channels, window size known at run time"
// mechanism = ["coalesced", "flat_index"]
// tune      = { BLOCK = [256, 128, 512] }
// define    = { BF16 = "dtype == 'bf16'", INSIDE = "divisor == 'inside'" }
// supports  = { divisor = ["window", "inside"], layout = ["nhwc"], dtype = ["f32", "bf16"] }
// requires  = ["n * p * q * c <= 4294966272"]
//
// [[launch]]
// kernel = "avgpool2d_nhwc_flat_divmod"
// grid   = ["cdiv(n * p * q * c, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n", "c", "h", "w", "p", "q", "window", "stride", "padding"]
// ///
//
// The first variant for nhwc: neighbouring threads process neighbouring channels of one pixel, so every load and store
// is contiguous whatever the stride is, and all of them have the same window. Limits: three integer divisions per
// output, loads of one element, and a loop whose bounds are known only at run time, so each load waits for the previous
// one.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void avgpool2d_nhwc_flat_divmod(const T* __restrict__ x, T* __restrict__ out, int n, int c, int h,
                                                      int w, int p, int q, int window, int stride, int padding) {
    // x [n][h][w][c]; out [n][p][q][c], fewer than 2^32 elements
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (unsigned)p * (unsigned)q * (unsigned)c) return;
    const unsigned channel = i % (unsigned)c;
    const unsigned pixel = i / (unsigned)c;
    const unsigned column = pixel % (unsigned)q;
    const unsigned row = pixel / (unsigned)q % (unsigned)p;
    const unsigned image = pixel / (unsigned)q / (unsigned)p;
    const int top = max((int)row * stride - padding, 0), bottom = min((int)row * stride - padding + window, h);
    const int left = max((int)column * stride - padding, 0), right = min((int)column * stride - padding + window, w);
    float sum = 0.0f;
    for (int y = top; y < bottom; ++y) {
        for (int z = left; z < right; ++z) {
            sum += (float)x[(((size_t)image * h + y) * w + z) * c + channel];
        }
    }
#if INSIDE
    const int count = (bottom - top) * (right - left);
#else
    const int count = window * window;
#endif
    out[i] = (T)(sum / count);
}
