// /// opbench
// title     = "one launch: one block per channel keeps the channel in registers, so that x is read once"
// builds_on = "vectorised"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "fewer_passes", "fused",
// ]
// tune      = { BLOCK = [512, 256, 1024, 128] }
// supports  = { dtype = ["f32", "bf16"], epilogue = ["none", "relu", "add", "add_relu"] }
// requires  = ["n * c * h * w <= 4294966272", "ITEMS * max(1, lanes * (2 if dtype == 'bf16' else 4) // 4) <= 32"]
//
// [define]
// BF16  = "dtype == 'bf16'"
// ADD   = "epilogue in ('add', 'add_relu')"
// RELU  = "epilogue in ('relu', 'add_relu')"
// LANES = "lanes"
// C     = "c"
// PLANE = "h * w"
// TOTAL = "n * h * w // lanes"
// ITEMS = "cdiv(TOTAL, BLOCK)"
//
// [[launch]]
// kernel = "batchnorm2d_train_resident"
// grid   = ["c"]
// block  = ["BLOCK"]
// ///
//
// Deep layers have many channels with few pixels. The registers of a block hold a whole channel, so the mean, the
// squared differences from it and the result need only one read of x, and no block waits for another kernel. The
// variance is computed in two passes over the registers, as in the first variant. The vectors of a warp are contiguous
// within a plane. HBM traffic is minimal: one read, one write. Limits: up to 32 words per thread, which is 32768 floats
// per channel; with fewer channels than multiprocessors, some are idle.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr unsigned VECTORS = PLANE / LANES;  // vectors of a plane

typedef Packed<T, LANES> Pack;

extern "C" __global__ void __launch_bounds__(BLOCK)
    batchnorm2d_train_resident(const Pack* __restrict__ x, const float* __restrict__ scale,
                               const float* __restrict__ shift, const float* running_mean,
                               const float* running_variance,
#if ADD
                               const Pack* __restrict__ residual,
#endif
                               Pack* __restrict__ out, float* __restrict__ mean_out, float* __restrict__ rstd_out,
                               float* new_running_mean, float* new_running_variance, int n, int c, int h, int w,
                               int momentum_percent) {
    // x, residual, out [n][C][VECTORS]; the others [C]; the new running statistics may overwrite the old ones
    __shared__ float first[BLOCK / 32][1], second[BLOCK / 32][1];
    const int channel = blockIdx.x;
    const auto at = [=](unsigned i) { return ((size_t)(i / VECTORS) * C + channel) * VECTORS + i % VECTORS; };
    const float pixels = (float)TOTAL * LANES;
    Pack pack[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const unsigned i = k * BLOCK + threadIdx.x;
        if (TOTAL % BLOCK == 0 || i < TOTAL) pack[k] = __ldcs(x + at(i));
    }
    float sum[1] = {0.0f}, squares[1] = {0.0f};
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (TOTAL % BLOCK != 0 && k * BLOCK + threadIdx.x >= TOTAL) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) sum[0] += lane_of<T>(pack[k], lane);
    }
    block_sums<BLOCK>(sum, first);
    const float mean = sum[0] / pixels;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (TOTAL % BLOCK != 0 && k * BLOCK + threadIdx.x >= TOTAL) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float centred = lane_of<T>(pack[k], lane) - mean;
            squares[0] += centred * centred;
        }
    }
    block_sums<BLOCK>(squares, second);
    const float variance = squares[0] / pixels, rstd = 1.0f / sqrtf(variance + 1e-5f);
    const float factor = rstd * scale[channel], offset = shift[channel];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const unsigned i = k * BLOCK + threadIdx.x;
        if (TOTAL % BLOCK != 0 && i >= TOTAL) break;
#if ADD
        const Pack added = __ldcs(residual + at(i));
#endif
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            float value = fmaf(lane_of<T>(pack[k], lane) - mean, factor, offset);
#if ADD
            value += lane_of<T>(added, lane);
#endif
#if RELU
            value = fmaxf(value, 0.0f);
#endif
            reinterpret_cast<T*>(&pack[k])[lane] = (T)value;
        }
        __stcs(out + at(i), pack[k]);
    }
    if (threadIdx.x != 0) return;
    const float momentum = momentum_percent / 100.0f;
    const float unbiased = pixels > 1.0f ? variance * (pixels / (pixels - 1.0f)) : variance;
    mean_out[channel] = mean;
    rstd_out[channel] = rstd;
    new_running_mean[channel] = (1.0f - momentum) * running_mean[channel] + momentum * mean;
    new_running_variance[channel] = (1.0f - momentum) * running_variance[channel] + momentum * unbiased;
}
