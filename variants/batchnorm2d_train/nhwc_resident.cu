// /// opbench
// title     = "nhwc, one launch: a block keeps all pixels of ACROSS channel vectors in registers, x is read once"
// builds_on = "nhwc_vector"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "fewer_passes",
//     "fused",
// ]
// tune      = { ACROSS = [2, 4, 1, 8], BLOCK = [512, 256, 1024] }
// supports  = { layout = ["nhwc"], dtype = ["f32", "bf16"], epilogue = ["none", "relu", "add", "add_relu"] }
// requires  = ["n * c * h * w <= 4294966272", "ITEMS * max(1, lanes * (2 if dtype == 'bf16' else 4) // 4) <= 32"]
//
// [define]
// BF16  = "dtype == 'bf16'"
// ADD   = "epilogue in ('add', 'add_relu')"
// RELU  = "epilogue in ('relu', 'add_relu')"
// LANES = "lanes"
// PACKS = "c // lanes"
// TOTAL = "n * h * w"
// ITEMS = "cdiv(TOTAL, BLOCK // ACROSS)"
//
// [[launch]]
// kernel = "batchnorm2d_train_nhwc_resident"
// grid   = ["cdiv(PACKS, ACROSS)"]
// block  = ["BLOCK"]
// ///
//
// Deep layers have many channels and few pixels. A block keeps all pixels of a few channels in registers, so x is read
// once for the mean, the variance and the result, and no kernel waits for another. With ACROSS = 2 a block reads 32
// bytes of a pixel, a whole sector. As in the first variant, the variance is computed after the mean, from the
// deviations; both passes read registers. Limits: up to 32 words per thread; few channels make few blocks. HBM traffic
// is minimal: one read, one write.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr unsigned DOWN = BLOCK / ACROSS;  // pixels at a time

typedef Packed<T, LANES> Pack;

extern "C" __global__ void __launch_bounds__(BLOCK)
    batchnorm2d_train_nhwc_resident(const Pack* __restrict__ x, const float* __restrict__ scale,
                                    const float* __restrict__ shift, const float* running_mean,
                                    const float* running_variance,
#if ADD
                                    const Pack* __restrict__ residual,
#endif
                                    Pack* __restrict__ out, float* __restrict__ mean_out, float* __restrict__ rstd_out,
                                    float* new_running_mean, float* new_running_variance, int n, int c, int h, int w,
                                    int momentum_percent) {
    // x, residual, out [TOTAL][PACKS]; the others [PACKS][LANES], the running ones perhaps in place
    __shared__ float first[BLOCK / 32][ACROSS][LANES], second[BLOCK / 32][ACROSS][LANES];
    const unsigned row = threadIdx.x / ACROSS, pack = blockIdx.x * ACROSS + threadIdx.x % ACROSS;
    const bool inside = PACKS % ACROSS == 0 || pack < PACKS;
    Pack packs[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const unsigned pixel = k * DOWN + row;
        if (inside && (TOTAL % DOWN == 0 || pixel < TOTAL)) packs[k] = __ldcs(x + (size_t)pixel * PACKS + pack);
    }
    float mean[LANES] = {}, squares[LANES] = {};
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (!inside || (TOTAL % DOWN != 0 && k * DOWN + row >= TOTAL)) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) mean[lane] += lane_of<T>(packs[k], lane);
    }
    column_sums<BLOCK, ACROSS>(mean, first);
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) mean[lane] /= (float)TOTAL;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (!inside || (TOTAL % DOWN != 0 && k * DOWN + row >= TOTAL)) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float centred = lane_of<T>(packs[k], lane) - mean[lane];
            squares[lane] += centred * centred;
        }
    }
    column_sums<BLOCK, ACROSS>(squares, second);
    if (!inside) return;
    float factor[LANES], offset[LANES];
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        const unsigned channel = pack * LANES + lane;
        const float pixels = (float)TOTAL, variance = squares[lane] / pixels, rstd = 1.0f / sqrtf(variance + 1e-5f);
        factor[lane] = rstd * scale[channel];
        offset[lane] = shift[channel];
        if (row != 0) continue;
        const float momentum = momentum_percent / 100.0f;
        const float unbiased = pixels > 1.0f ? variance * (pixels / (pixels - 1.0f)) : variance;
        mean_out[channel] = mean[lane];
        rstd_out[channel] = rstd;
        new_running_mean[channel] = (1.0f - momentum) * running_mean[channel] + momentum * mean[lane];
        new_running_variance[channel] = (1.0f - momentum) * running_variance[channel] + momentum * unbiased;
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const unsigned pixel = k * DOWN + row;
        if (TOTAL % DOWN != 0 && pixel >= TOTAL) break;
#if ADD
        const Pack added = __ldcs(residual + (size_t)pixel * PACKS + pack);
#endif
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            float value = fmaf(lane_of<T>(packs[k], lane) - mean[lane], factor[lane], offset[lane]);
#if ADD
            value += lane_of<T>(added, lane);
#endif
#if RELU
            value = fmaxf(value, 0.0f);
#endif
            reinterpret_cast<T*>(&packs[k])[lane] = (T)value;
        }
        __stcs(out + (size_t)pixel * PACKS + pack, packs[k]);
    }
}
