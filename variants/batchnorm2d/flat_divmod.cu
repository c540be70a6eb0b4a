// /// opbench
// title    = "one thread per element, flat grid: the channel by division and remainder"
// mechanism = ["coalesced", "flat_index"]
// tune     = { BLOCK = [256, 128, 512] }
// define   = { BF16 = "dtype == 'bf16'", NHWC = "layout == 'nhwc'", RELU = "epilogue == 'relu'" }
// supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"], epilogue = ["none", "relu"] }
// requires = ["n * c * h * w <= 2147483647"]
//
// [[launch]]
// kernel = "batchnorm2d_flat_divmod"
// grid   = ["cdiv(n * c * h * w, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "scale", "shift", "mean", "variance", "out", "n * c * h * w", "c", "h * w"]
// ///
//
// The first variant: each access of x and out is contiguous across the warp, and the four parameters of a channel come
// from the L1 cache. Limits: each element costs a division by a size known only at run time, five loads, a square root
// and another division; and each load or store moves only one element.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void batchnorm2d_flat_divmod(const T* __restrict__ x, const T* __restrict__ scale,
                                                   const T* __restrict__ shift, const T* __restrict__ mean,
                                                   const T* __restrict__ variance, T* __restrict__ out,
                                                   unsigned elements, int c, int plane) {
    // x, out [n][c][h][w] or [n][h][w][c], fewer than 2^32 elements; plane = h * w; the others [c]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= elements) return;
#if NHWC
    const unsigned channel = i % (unsigned)c;
#else
    const unsigned channel = i / (unsigned)plane % (unsigned)c;
#endif
    const float deviation = sqrtf((float)variance[channel] + 1e-5f);
    float value = ((float)x[i] - (float)mean[channel]) / deviation * (float)scale[channel] + (float)shift[channel];
#if RELU
    value = fmaxf(value, 0.0f);
#endif
    out[i] = (T)value;
}
