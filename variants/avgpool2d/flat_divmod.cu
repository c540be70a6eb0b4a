// /// opbench
// title     = "one thread per output, flat grid: coordinates by division and remainder"
// mechanism = ["coalesced", "flat_index"]
// tune      = { BLOCK = [256, 128, 512] }
// define    = { BF16 = "dtype == 'bf16'", INSIDE = "divisor == 'inside'" }
// supports  = { divisor = ["window", "inside"], dtype = ["f32", "bf16"] }
// requires  = ["n * c * p * q <= 4294966272"]
//
// [[launch]]
// kernel = "avgpool2d_flat_divmod"
// grid   = ["cdiv(n * c * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n * c", "h", "w", "p", "q", "window", "stride", "padding"]
// ///
//
// The first variant: consecutive threads write consecutive outputs, whatever the size of a plane. Limits: integer
// divisions by sizes known only at run time, some twenty instructions each; the bounds of the loop are known only at
// run time, so each load waits for the one before.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void avgpool2d_flat_divmod(const T* __restrict__ x, T* __restrict__ out, int planes, int h, int w,
                                                 int p, int q, int window, int stride, int padding) {
    // x [planes][h][w]; out [planes][p][q], fewer than 2^32 elements
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)planes * (unsigned)p * (unsigned)q) return;
    const unsigned column = i % (unsigned)q;
    const unsigned row = i / (unsigned)q % (unsigned)p;
    const unsigned plane = i / (unsigned)q / (unsigned)p;
    const int top = max((int)row * stride - padding, 0), bottom = min((int)row * stride - padding + window, h);
    const int left = max((int)column * stride - padding, 0), right = min((int)column * stride - padding + window, w);
    const T* image = x + (size_t)plane * h * w;
    float sum = 0.0f;
    for (int y = top; y < bottom; ++y) {
        for (int z = left; z < right; ++z) {
            sum += (float)image[(size_t)y * w + z];
        }
    }
#if INSIDE
    const int count = (bottom - top) * (right - left);
#else
    const int count = window * window;
#endif
    out[i] = (T)(sum / count);
}
