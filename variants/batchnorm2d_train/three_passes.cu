// /// opbench
// title  = "one block per channel, three passes: mean, variance, normalisation"
// mechanism = ["coalesced", "block_reduction"]
// tune   = { BLOCK = [512, 256, 1024] }
//
// [define]
// BF16 = "dtype == 'bf16'"
// NHWC = "layout == 'nhwc'"
// ADD  = "epilogue in ('add', 'add_relu')"
// RELU = "epilogue in ('relu', 'add_relu')"
//
// [supports]
// layout   = ["nchw", "nhwc"]
// dtype    = ["f32", "bf16"]
// epilogue = ["none", "relu", "add", "add_relu"]
//
// [[launch]]
// kernel = "batchnorm2d_train_three_passes"
// grid   = ["c"]
// block  = ["BLOCK"]
// ///
//
// The first variant follows the formula: the mean is known before the first difference is squared, so an image whose
// values are far from 0 loses no precision. A tree in shared memory adds the threads' sums, in the same order on every
// GPU. Limits: x is read three times; there are only as many blocks as channels, which leaves most of a GPU idle; in
// nhwc the lanes of a warp read addresses that are a whole pixel apart.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// Return the sum of `value` over the block, in every thread.
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
    batchnorm2d_train_three_passes(const T* __restrict__ x, const float* __restrict__ scale,
                                   const float* __restrict__ shift, const float* running_mean,
                                   const float* running_variance,
#if ADD
                                   const T* __restrict__ residual,
#endif
                                   T* __restrict__ out, float* __restrict__ mean_out, float* __restrict__ rstd_out,
                                   float* new_running_mean, float* new_running_variance, int n, int c, int h, int w,
                                   int momentum_percent) {
    // x, residual, out [n][c][h][w] or [n][h][w][c]; the others [c]; the new running statistics may overwrite the old
    // ones
    __shared__ float shared[BLOCK];
    const int channel = blockIdx.x, pixels = n * h * w, plane = h * w;
    const auto at = [=](int pixel) {
#if NHWC
        return (size_t)pixel * c + channel;
#else
        return ((size_t)(pixel / plane) * c + channel) * plane + pixel % plane;
#endif
    };
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < pixels; i += BLOCK) sum += (float)x[at(i)];
    const float mean = over_block(sum, shared) / pixels;
    for (int i = threadIdx.x; i < pixels; i += BLOCK) {
        const float centred = (float)x[at(i)] - mean;
        squares += centred * centred;
    }
    const float variance = over_block(squares, shared) / pixels;
    const float rstd = 1.0f / sqrtf(variance + 1e-5f);
    const float factor = rstd * scale[channel], offset = shift[channel];
    for (int i = threadIdx.x; i < pixels; i += BLOCK) {
        float value = fmaf((float)x[at(i)] - mean, factor, offset);
#if ADD
        value += (float)residual[at(i)];
#endif
#if RELU
        value = fmaxf(value, 0.0f);
#endif
        out[at(i)] = (T)value;
    }
    if (threadIdx.x != 0) return;
    const float momentum = momentum_percent / 100.0f;
    const float unbiased = pixels > 1 ? variance * ((float)pixels / (pixels - 1)) : variance;
    mean_out[channel] = mean;
    rstd_out[channel] = rstd;
    new_running_mean[channel] = (1.0f - momentum) * running_mean[channel] + momentum * mean;
    new_running_variance[channel] = (1.0f - momentum) * running_variance[channel] + momentum * unbiased;
}
