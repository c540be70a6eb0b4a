// /// opbench
// title     = "mean and variance in one pass: Welford's algorithm per thread, merged by Chan's formula"
// builds_on = "three_passes"
// mechanism = ["coalesced", "block_reduction", "fewer_barriers", "fewer_passes"]
// tune      = { BLOCK = [512, 256, 1024] }
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
// kernel = "batchnorm2d_train_welford"
// grid   = ["c"]
// block  = ["BLOCK"]
// ///
//
// x is read twice instead of three times. Each thread keeps the count, the mean and the sum of squared deviations of
// the elements that it has read (Welford 1962), which stays accurate if the mean is large. Two such triples merge
// without loss (Chan, Golub and LeVeque 1979), here by a tree in a fixed order. Limits: a division per element; there
// are only as many blocks as channels, so most of a GPU is idle; in nhwc the lanes of a warp read addresses that are a
// whole pixel apart.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

struct Moments {
    float count, mean, squares;  // squares: the sum of (x - mean)^2
    __device__ __forceinline__ void merge(const Moments& other) {
        if (other.count == 0.0f) return;
        const float delta = other.mean - mean, share = other.count / (count + other.count);
        mean += delta * share;
        squares += other.squares + delta * delta * count * share;
        count += other.count;
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK)
    batchnorm2d_train_welford(const T* __restrict__ x, const float* __restrict__ scale, const float* __restrict__ shift,
                              const float* running_mean, const float* running_variance,
#if ADD
                              const T* __restrict__ residual,
#endif
                              T* __restrict__ out, float* __restrict__ mean_out, float* __restrict__ rstd_out,
                              float* new_running_mean, float* new_running_variance, int n, int c, int h, int w,
                              int momentum_percent) {
    // x, residual, out [n][c][h][w] or [n][h][w][c]; the others [c], the running ones perhaps in place
    __shared__ Moments shared[BLOCK];
    const int channel = blockIdx.x, pixels = n * h * w, plane = h * w;
    const auto at = [=](int pixel) {
#if NHWC
        return (size_t)pixel * c + channel;
#else
        return ((size_t)(pixel / plane) * c + channel) * plane + pixel % plane;
#endif
    };
    Moments own = {0.0f, 0.0f, 0.0f};
    for (int i = threadIdx.x; i < pixels; i += BLOCK) {
        const float delta = (float)x[at(i)] - own.mean;
        own.count += 1.0f;
        own.mean += delta / own.count;
        own.squares += delta * ((float)x[at(i)] - own.mean);
    }
    shared[threadIdx.x] = own;
    __syncthreads();
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x].merge(shared[threadIdx.x + half]);
        __syncthreads();
    }
    const float mean = shared[0].mean, variance = shared[0].squares / pixels;
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
