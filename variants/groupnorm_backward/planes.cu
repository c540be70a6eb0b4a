// /// opbench
// supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"], activation = ["none", "silu"] }
// requires = ["batch * channels * pixels < 2 ** 31"]
//
// [define]
// BF16     = "dtype == 'bf16'"
// NHWC     = "layout == 'nhwc'"
// SILU     = "activation == 'silu'"
// CHANNELS = "channels"
// PIXELS   = "pixels"
// GROUPS   = "groups"
// WIDTH    = "width"
//
// [workspace]
// sums  = "2 * batch * channels"
// means = "2 * batch * groups"
//
// [[launch]]
// kernel = "groupnorm_backward_planes"
// grid   = ["cdiv(batch * channels * ACROSS, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "dout", "weight", "bias?", "mean", "rstd", "sums", "batch"]
//
// [[launch]]
// kernel = "groupnorm_backward_channels"
// grid   = ["cdiv(channels, 128)"]
// block  = ["128"]
// args   = ["sums", "dweight", "dbias", "batch"]
//
// [[launch]]
// kernel = "groupnorm_backward_groups"
// grid   = ["cdiv(batch * groups, 128)"]
// block  = ["128"]
// args   = ["sums", "weight", "means", "batch"]
//
// [[launch]]
// kernel = "groupnorm_backward_apply"
// grid   = ["cdiv(batch * channels * pixels, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "dout", "weight", "bias?", "mean", "rstd", "means", "dx", "batch"]
//
// [variant.thread_per_plane]
// title     = "one thread per plane (a channel of one image); small kernels add planes to channels and groups"
// tune      = { BLOCK = [128, 256] }
// define    = { ACROSS = "1" }
//
// [variant.warp_per_plane]
// title     = "one warp per plane, sums added by warp shuffles"
// builds_on = "thread_per_plane"
// mechanism = ["coalesced", "block_reduction", "fewer_barriers", "warp_shuffle"]
// tune      = { BLOCK = [256, 128, 512] }
// define    = { ACROSS = "32" }
// ///
//
// The sums of dy and of dy * xhat over each plane are all that dweight, dbias and both means of a group depend on. In
// nchw the lanes of a warp read neighbouring pixels. Limits: x and dout are read twice; in nhwc the pixels of a plane
// are `channels` elements apart, so each load takes a sector of 32 bytes for one element.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

#if SILU
#define BIAS_PARAMETER const float* __restrict__ bias,
#define BIAS_OF(channel) bias[channel]
#else
#define BIAS_PARAMETER
#define BIAS_OF(channel) 0.0f
#endif

// Return the gradient before the activation.
__device__ __forceinline__ float before(float dout, float xhat, float weight, float bias) {
#if SILU
    const float y = xhat * weight + bias, share = 1.0f / (1.0f + expf(-y));
    return dout * share * (1.0f + y * (1.0f - share));
#else
    return dout;
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    groupnorm_backward_planes(const T* __restrict__ x, const T* __restrict__ dout, const float* __restrict__ weight,
                              BIAS_PARAMETER const float* __restrict__ mean, const float* __restrict__ rstd,
                              float* __restrict__ sums, int batch) {
    // x, dout [batch][CHANNELS][PIXELS] or [batch][PIXELS][CHANNELS]; mean, rstd [batch][GROUPS];
    // sums [2][batch][CHANNELS]
    const int plane = (blockIdx.x * BLOCK + threadIdx.x) / ACROSS, planes = batch * CHANNELS;
    if (plane >= planes) return;  // with ACROSS = 32, true for whole warps only, so shuffles stay safe
    const int image = plane / CHANNELS, channel = plane % CHANNELS, group = image * GROUPS + channel / WIDTH;
    const float factor = weight[channel], shift = BIAS_OF(channel);
    float sum = 0.0f, product = 0.0f;
    for (int pixel = threadIdx.x % ACROSS; pixel < PIXELS; pixel += ACROSS) {
        const int at = NHWC ? (image * PIXELS + pixel) * CHANNELS + channel : plane * PIXELS + pixel;
        const float xhat = ((float)x[at] - mean[group]) * rstd[group];
        const float dy = before((float)dout[at], xhat, factor, shift);
        sum += dy;
        product += dy * xhat;
    }
#pragma unroll
    for (int step = ACROSS / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
        product += __shfl_xor_sync(0xffffffffu, product, step);
    }
    if (threadIdx.x % ACROSS != 0) return;
    sums[plane] = sum;
    sums[planes + plane] = product;
}

extern "C" __global__ void __launch_bounds__(128)
    groupnorm_backward_channels(const float* __restrict__ sums, float* __restrict__ dweight, float* __restrict__ dbias,
                                int batch) {
    const int channel = blockIdx.x * 128 + threadIdx.x;
    if (channel >= CHANNELS) return;
    float sum = 0.0f, product = 0.0f;
    for (int image = 0; image < batch; ++image) {
        sum += sums[image * CHANNELS + channel];
        product += sums[(batch + image) * CHANNELS + channel];
    }
    dbias[channel] = sum;
    dweight[channel] = product;
}

extern "C" __global__ void __launch_bounds__(128)
    groupnorm_backward_groups(const float* __restrict__ sums, const float* __restrict__ weight,
                              float* __restrict__ means, int batch) {
    // means [2][batch][GROUPS]: of g, and of g * xhat
    const int group = blockIdx.x * 128 + threadIdx.x;
    if (group >= batch * GROUPS) return;
    const int image = group / GROUPS, first = group % GROUPS * WIDTH;
    float sum = 0.0f, product = 0.0f;
    for (int channel = first; channel < first + WIDTH; ++channel) {
        sum += weight[channel] * sums[image * CHANNELS + channel];
        product += weight[channel] * sums[(batch + image) * CHANNELS + channel];
    }
    means[group] = sum / ((float)WIDTH * PIXELS);
    means[batch * GROUPS + group] = product / ((float)WIDTH * PIXELS);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    groupnorm_backward_apply(const T* __restrict__ x, const T* __restrict__ dout, const float* __restrict__ weight,
                             BIAS_PARAMETER const float* __restrict__ mean, const float* __restrict__ rstd,
                             const float* __restrict__ means, T* __restrict__ dx, int batch) {
    const int at = blockIdx.x * BLOCK + threadIdx.x;
    if (at >= batch * CHANNELS * PIXELS) return;
    const int image = at / (CHANNELS * PIXELS), channel = NHWC ? at % CHANNELS : at / PIXELS % CHANNELS;
    const int group = image * GROUPS + channel / WIDTH;
    const float xhat = ((float)x[at] - mean[group]) * rstd[group];
    const float g = before((float)dout[at], xhat, weight[channel], BIAS_OF(channel)) * weight[channel];
    dx[at] = (T)(rstd[group] * (g - means[group] - xhat * means[batch * GROUPS + group]));
}
