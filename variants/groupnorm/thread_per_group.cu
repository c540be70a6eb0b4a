// /// opbench
// title    = "one thread per group of one image, three passes over it"
// tune     = { BLOCK = [32, 64, 128] }
// supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"], activation = ["none", "silu"] }
//
// [define]
// BF16  = "dtype == 'bf16'"
// NHWC  = "layout == 'nhwc'"
// SILU  = "activation == 'silu'"
//
// [[launch]]
// kernel = "groupnorm_thread_per_group"
// grid   = ["cdiv(batch * groups, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant: mean, variance and result as they are defined. Limits: a few hundred groups mean only a few
// hundred threads on the whole GPU, and neighbouring threads read addresses that are a whole group apart.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

__device__ __forceinline__ float activated(float value) {
#if SILU
    return value / (1.0f + __expf(-value));
#else
    return value;
#endif
}

extern "C" __global__ void groupnorm_thread_per_group(const T* __restrict__ x, const float* __restrict__ weight,
                                                      const float* __restrict__ bias, T* __restrict__ out,
                                                      float* __restrict__ mean, float* __restrict__ rstd, int batch,
                                                      int channels, int pixels, int groups) {
    // x, out [batch][channels][pixels] (nhwc: [batch][pixels][channels]); weight, bias [channels]; mean, rstd
    // [batch][groups]
    const int group = blockIdx.x * BLOCK + threadIdx.x, width = channels / groups;
    if (group >= batch * groups) return;
    const int first = group % groups * width;  // the group's first channel
    const size_t image = (size_t)(group / groups) * channels * pixels;
#if NHWC
    const size_t channel_stride = 1, pixel_stride = channels;
#else
    const size_t channel_stride = pixels, pixel_stride = 1;
#endif
    float sum = 0.0f, squares = 0.0f;
    for (int c = first; c < first + width; ++c) {
        float part = 0.0f;  // adding up one channel at a time loses fewer digits
        for (int p = 0; p < pixels; ++p) part += (float)x[image + c * channel_stride + p * pixel_stride];
        sum += part;
    }
    const float centre = sum / ((float)width * pixels);
    for (int c = first; c < first + width; ++c) {
        float part = 0.0f;
        for (int p = 0; p < pixels; ++p) {
            const float centred = (float)x[image + c * channel_stride + p * pixel_stride] - centre;
            part += centred * centred;
        }
        squares += part;
    }
    const float factor = 1.0f / sqrtf(squares / ((float)width * pixels) + 1e-5f);
    for (int c = first; c < first + width; ++c) {
        for (int p = 0; p < pixels; ++p) {
            const size_t i = image + c * channel_stride + p * pixel_stride;
            out[i] = (T)activated(((float)x[i] - centre) * factor * weight[c] + bias[c]);
        }
    }
    mean[group] = centre;
    rstd[group] = factor;
}
