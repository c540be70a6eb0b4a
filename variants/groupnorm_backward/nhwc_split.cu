// /// opbench
// title     = "nhwc: 16-byte vectors of channels, pixels split over up to SPLIT blocks; a second kernel adds sums"
// builds_on = "warp_per_plane"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "split_k",
// ]
// supports  = { layout = ["nhwc"], dtype = ["f32", "bf16"], activation = ["none", "silu"] }
// tune      = { SPLIT = [32, 16, 64], BLOCK = [256, 128] }
// requires  = ["batch * channels * pixels < 2 ** 31", "batch <= 65535", "cdiv(channels // lanes, 8) <= 65535"]
//
// [define]
// BF16   = "dtype == 'bf16'"
// SILU   = "activation == 'silu'"
// PIXELS = "pixels"
// GROUPS = "groups"
// WIDTH  = "width"
// LANES  = "lanes"
// PACKS  = "channels // lanes"
// DOWN   = "BLOCK // 8"
// PARTS  = "min(SPLIT, cdiv(pixels, DOWN))"
//
// [workspace]
// parts = "2 * batch * PARTS * channels"
// sums  = "2 * batch * channels"
// means = "2 * batch * groups"
//
// [[launch]]
// kernel = "groupnorm_backward_parts"
// grid   = ["PARTS", "batch", "cdiv(PACKS, 8)"]
// block  = ["8", "DOWN"]
// args   = ["x", "dout", "weight", "bias?", "mean", "rstd", "parts", "batch"]
//
// [[launch]]
// kernel = "groupnorm_backward_sums"
// grid   = ["cdiv(2 * batch * channels, 128)"]
// block  = ["128"]
// args   = ["parts", "sums", "batch"]
//
// [[launch]]
// kernel = "groupnorm_backward_numbers"
// grid   = ["cdiv(channels + batch * groups, 128)"]
// block  = ["128"]
// args   = ["sums", "weight", "dweight", "dbias", "means", "batch"]
//
// [[launch]]
// kernel = "groupnorm_backward_vectors"
// grid   = ["cdiv(batch * pixels * PACKS, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "dout", "weight", "bias?", "mean", "rstd", "means", "dx", "batch"]
// ///
//
// A block reads eight neighbouring vectors of channels of each pixel, and the blocks share the pixels of an image, so
// even one image occupies the whole GPU. The sums of a block's rows are added in shared memory, those of the blocks in
// the second kernel, both in a fixed order. Limit: x and dout are read twice, the second time partly from the L2 cache.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

struct __align__(sizeof(T) * LANES) Pack { T lane[LANES]; };
constexpr int CHANNELS = PACKS * LANES;

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
    groupnorm_backward_parts(const Pack* __restrict__ x, const Pack* __restrict__ dout,
                             const float* __restrict__ weight, BIAS_PARAMETER const float* __restrict__ mean,
                             const float* __restrict__ rstd, float* __restrict__ parts, int batch) {
    // x, dout [batch][PIXELS][PACKS]; mean, rstd [batch][GROUPS]; parts [PARTS][2][batch][CHANNELS]
    __shared__ float rows[DOWN][2 * LANES * 8];
    const int image = blockIdx.y, pack = blockIdx.z * 8 + threadIdx.x;
    const bool inside = pack < PACKS;
    float sums[2 * LANES] = {};  // of dy, then of dy * xhat
    if (inside) {
        const int group = image * GROUPS + pack * LANES / WIDTH;
        const float centre = mean[group], scale = rstd[group];
        for (int pixel = blockIdx.x * DOWN + threadIdx.y; pixel < PIXELS; pixel += PARTS * DOWN) {
            const size_t at = ((size_t)image * PIXELS + pixel) * PACKS + pack;
            const Pack value = x[at], gradient = dout[at];
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                const int channel = pack * LANES + lane;
                const float xhat = ((float)value.lane[lane] - centre) * scale;
                const float dy = before((float)gradient.lane[lane], xhat, weight[channel], BIAS_OF(channel));
                sums[lane] += dy;
                sums[LANES + lane] += dy * xhat;
            }
        }
    }
#pragma unroll
    for (int k = 0; k < 2 * LANES; ++k) rows[threadIdx.y][k * 8 + threadIdx.x] = sums[k];
    __syncthreads();
    for (int k = threadIdx.y; inside && k < 2 * LANES; k += DOWN) {
        float sum = 0.0f;
#pragma unroll
        for (int row = 0; row < DOWN; ++row) sum += rows[row][k * 8 + threadIdx.x];
        const int which = k / LANES, channel = pack * LANES + k % LANES;
        parts[((blockIdx.x * 2 + which) * (size_t)batch + image) * CHANNELS + channel] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(128)
    groupnorm_backward_sums(const float* __restrict__ parts, float* __restrict__ sums, int batch) {
    const int index = blockIdx.x * 128 + threadIdx.x, count = 2 * batch * CHANNELS;
    if (index >= count) return;
    float sum = 0.0f;
#pragma unroll 8
    for (int part = 0; part < PARTS; ++part) sum += parts[(size_t)part * count + index];
    sums[index] = sum;
}

extern "C" __global__ void __launch_bounds__(128)
    groupnorm_backward_numbers(const float* __restrict__ sums, const float* __restrict__ weight,
                               float* __restrict__ dweight, float* __restrict__ dbias, float* __restrict__ means,
                               int batch) {
    // means [2][batch][GROUPS]: of g, and of g * xhat
    const int index = blockIdx.x * 128 + threadIdx.x;
    float sum = 0.0f, product = 0.0f;
    if (index < CHANNELS) {
        for (int image = 0; image < batch; ++image) {
            sum += sums[image * CHANNELS + index];
            product += sums[(batch + image) * CHANNELS + index];
        }
        dbias[index] = sum;
        dweight[index] = product;
        return;
    }
    const int group = index - CHANNELS;
    if (group >= batch * GROUPS) return;
    const int image = group / GROUPS, first = group % GROUPS * WIDTH;
    for (int channel = first; channel < first + WIDTH; ++channel) {
        sum += weight[channel] * sums[image * CHANNELS + channel];
        product += weight[channel] * sums[(batch + image) * CHANNELS + channel];
    }
    means[group] = sum / ((float)WIDTH * PIXELS);
    means[batch * GROUPS + group] = product / ((float)WIDTH * PIXELS);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    groupnorm_backward_vectors(const Pack* __restrict__ x, const Pack* __restrict__ dout,
                               const float* __restrict__ weight, BIAS_PARAMETER const float* __restrict__ mean,
                               const float* __restrict__ rstd, const float* __restrict__ means, Pack* __restrict__ dx,
                               int batch) {
    const int at = blockIdx.x * BLOCK + threadIdx.x;
    if (at >= batch * PIXELS * PACKS) return;
    const int pack = at % PACKS, group = at / (PIXELS * PACKS) * GROUPS + pack * LANES / WIDTH;
    const float centre = mean[group], scale = rstd[group];
    const float gradient_mean = means[group], product_mean = means[batch * GROUPS + group];
    const Pack value = x[at], gradient = dout[at];
    Pack result;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        const int channel = pack * LANES + lane;
        const float xhat = ((float)value.lane[lane] - centre) * scale, factor = weight[channel];
        const float g = before((float)gradient.lane[lane], xhat, factor, BIAS_OF(channel)) * factor;
        result.lane[lane] = (T)(scale * (g - gradient_mean - xhat * product_mean));
    }
    dx[at] = result;
}
