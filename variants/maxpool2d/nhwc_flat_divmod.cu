// /// opbench
// title     = "nhwc: one thread per output, threadIdx.x along the channels, window size known at run time"
// mechanism = ["coalesced", "flat_index"]
// tune      = { BLOCK = [256, 128, 512] }
// define    = { BF16 = "dtype == 'bf16'", POSITIONS = "positions == 'yes'" }
// supports  = { layout = ["nhwc"], dtype = ["f32", "bf16"], positions = ["no", "yes"] }
// requires  = ["n * p * q * c <= 4294966272"]
//
// [[launch]]
// kernel = "maxpool2d_nhwc_flat_divmod"
// grid   = ["cdiv(n * p * q * c, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "positions?", "n", "c", "h", "w", "p", "q", "window", "stride", "padding"]
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

extern "C" __global__ void maxpool2d_nhwc_flat_divmod(const T* __restrict__ x, T* __restrict__ out,
#if POSITIONS
                                                      unsigned char* __restrict__ positions,
#endif
                                                      int n, int c, int h, int w, int p, int q, int window, int stride,
                                                      int padding) {
    // x [n][h][w][c]; out, positions [n][p][q][c], fewer than 2^32 elements
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (unsigned)p * (unsigned)q * (unsigned)c) return;
    const unsigned channel = i % (unsigned)c;
    const unsigned pixel = i / (unsigned)c;
    const unsigned column = pixel % (unsigned)q;
    const unsigned row = pixel / (unsigned)q % (unsigned)p;
    const unsigned image = pixel / (unsigned)q / (unsigned)p;
    const int top = max((int)row * stride - padding, 0), bottom = min((int)row * stride - padding + window, h);
    const int left = max((int)column * stride - padding, 0), right = min((int)column * stride - padding + window, w);
    float largest = __int_as_float(0xff800000);  // -infinity
    int place = 255;
    for (int y = top; y < bottom; ++y) {
        for (int z = left; z < right; ++z) {
            const float value = x[(((size_t)image * h + y) * w + z) * c + channel];
            if (value > largest) {
                largest = value;
                place = (y + padding - (int)row * stride) * window + z + padding - (int)column * stride;
            }
        }
    }
    out[i] = largest;
#if POSITIONS
    positions[i] = (unsigned char)place;
#endif
}
