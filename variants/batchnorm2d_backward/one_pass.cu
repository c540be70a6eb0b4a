// /// opbench
// title     = "one block per channel, two passes: both sums, then the gradient"
// builds_on = "two_reductions"
// mechanism = ["coalesced", "block_reduction", "fewer_barriers", "fewer_passes"]
// tune      = { BLOCK = [512, 256, 1024] }
// define    = { BF16 = "dtype == 'bf16'", NHWC = "layout == 'nhwc'", RELU = "epilogue == 'relu'" }
//
// [supports]
// layout   = ["nchw", "nhwc"]
// dtype    = ["f32", "bf16"]
// epilogue = ["none", "relu"]
//
// [[launch]]
// kernel = "batchnorm2d_backward_one_pass"
// grid   = ["c"]
// block  = ["BLOCK"]
// ///
//
// Neither sum depends on the other, so one pass computes both: x and dout are read twice, whereas two_reductions reads
// dout three times. Limits: there are only as many blocks as channels, which leaves most of a GPU idle; one element per
// access; in nhwc the lanes of a warp read addresses that are a whole pixel apart.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
    batchnorm2d_backward_one_pass(const T* __restrict__ x, const T* __restrict__ dout, const float* __restrict__ scale,
                                  const float* __restrict__ shift, const float* __restrict__ mean_in,
                                  const float* __restrict__ rstd_in, T* __restrict__ dx, float* __restrict__ dscale,
                                  float* __restrict__ dshift, int n, int c, int h, int w) {
    // x, dout, dx [n][c][h][w] or [n][h][w][c]; the others [c]
    __shared__ float sums[BLOCK], products[BLOCK];
    const int channel = blockIdx.x, pixels = n * h * w, plane = h * w;
    const float mean = mean_in[channel], rstd = rstd_in[channel], factor = rstd * scale[channel];
    const auto at = [=](int pixel) {
#if NHWC
        return (size_t)pixel * c + channel;
#else
        return ((size_t)(pixel / plane) * c + channel) * plane + pixel % plane;
#endif
    };
    const auto masked_gradient = [=](float centred, float gradient) {
#if RELU
        return fmaf(centred, factor, shift[channel]) > 0.0f ? gradient : 0.0f;
#else
        return gradient;
#endif
    };
    float sum = 0.0f, product = 0.0f;
    for (int i = threadIdx.x; i < pixels; i += BLOCK) {
        const float centred = (float)x[at(i)] - mean, dy = masked_gradient(centred, (float)dout[at(i)]);
        sum += dy;
        product += dy * (centred * rstd);
    }
    sums[threadIdx.x] = sum;
    products[threadIdx.x] = product;
    __syncthreads();
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
            products[threadIdx.x] += products[threadIdx.x + half];
        }
        __syncthreads();
    }
    const float first = sums[0] / pixels, second = products[0] / pixels;
    for (int i = threadIdx.x; i < pixels; i += BLOCK) {
        const float centred = (float)x[at(i)] - mean, dy = masked_gradient(centred, (float)dout[at(i)]);
        dx[at(i)] = (T)(factor * (dy - first - centred * rstd * second));
    }
    if (threadIdx.x != 0) return;
    dscale[channel] = products[0];
    dshift[channel] = sums[0];
}
