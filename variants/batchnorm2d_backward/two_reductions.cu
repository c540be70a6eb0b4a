// /// opbench
// title  = "one block per channel, three passes: one for each sum, one for the gradient"
// mechanism = ["coalesced", "block_reduction"]
// tune   = { BLOCK = [512, 256, 1024] }
// define = { BF16 = "dtype == 'bf16'", NHWC = "layout == 'nhwc'", RELU = "epilogue == 'relu'" }
//
// [supports]
// layout   = ["nchw", "nhwc"]
// dtype    = ["f32", "bf16"]
// epilogue = ["none", "relu"]
//
// [[launch]]
// kernel = "batchnorm2d_backward_two_reductions"
// grid   = ["c"]
// block  = ["BLOCK"]
// ///
//
// The first variant follows the formula: the sum of dy, the sum of dy * xhat, then dx. To know which pixels the ReLU
// set to zero, it computes the output again, by the same expression as the forward pass. A tree in shared memory adds
// the threads' sums, in the same order on every GPU. Limits: dout is read three times; x is read three times with a
// ReLU, otherwise twice; there are only as many blocks as channels; in nhwc the lanes of a warp read addresses that are
// a whole pixel apart.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// Return the sum of a value over the block, in every thread.
__device__ float over_block(float value, float* shared) {
    shared[threadIdx.x] = value;
    __syncthreads();
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    value = shared[0];
    __syncthreads();
    return value;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    batchnorm2d_backward_two_reductions(const T* __restrict__ x, const T* __restrict__ dout,
                                        const float* __restrict__ scale, const float* __restrict__ shift,
                                        const float* __restrict__ mean_in, const float* __restrict__ rstd_in,
                                        T* __restrict__ dx, float* __restrict__ dscale, float* __restrict__ dshift,
                                        int n, int c, int h, int w) {
    // x, dout, dx [n][c][h][w] or [n][h][w][c]; the others [c]
    __shared__ float shared[BLOCK];
    const int channel = blockIdx.x, pixels = n * h * w, plane = h * w;
    const float mean = mean_in[channel], rstd = rstd_in[channel], factor = rstd * scale[channel];
    const auto at = [=](int pixel) {
#if NHWC
        return (size_t)pixel * c + channel;
#else
        return ((size_t)(pixel / plane) * c + channel) * plane + pixel % plane;
#endif
    };
    const auto masked_gradient = [=](size_t i) {
#if RELU
        return fmaf((float)x[i] - mean, factor, shift[channel]) > 0.0f ? (float)dout[i] : 0.0f;
#else
        return (float)dout[i];
#endif
    };
    float sum = 0.0f, product = 0.0f;
    for (int i = threadIdx.x; i < pixels; i += BLOCK) sum += masked_gradient(at(i));
    sum = over_block(sum, shared);
    for (int i = threadIdx.x; i < pixels; i += BLOCK)
        product += masked_gradient(at(i)) * (((float)x[at(i)] - mean) * rstd);
    product = over_block(product, shared);
    const float first = sum / pixels, second = product / pixels;
    for (int i = threadIdx.x; i < pixels; i += BLOCK) {
        const float xhat = ((float)x[at(i)] - mean) * rstd;
        dx[at(i)] = (T)(factor * (masked_gradient(at(i)) - first - xhat * second));
    }
    if (threadIdx.x != 0) return;
    dscale[channel] = product;
    dshift[channel] = sum;
}
