// /// opbench
// title     = "nhwc, one launch: shared memory keeps x between the passes, what does not fit is read again"
// builds_on = "nhwc_vector"
// mechanism = [
//     "coalesced", "vectorised_access", "unrolled", "block_reduction", "fewer_barriers", "warp_shuffle",
//     "compile_time_sizes", "fewer_passes", "fused", "persistent", "split_k",
// ]
// tune      = { UNROLL = [8, 4] }
// supports  = { layout = ["nhwc"], dtype = ["f32", "bf16"], epilogue = ["none", "relu", "add", "add_relu"] }
// requires  = ["n * c * h * w <= 4294966272", "lanes * (2 if dtype == 'bf16' else 4) == 16", "GROUPS <= 64"]
// compute_capability = "9.0"
//
// [define]
// BLOCK    = "512"
// BF16     = "dtype == 'bf16'"
// ADD      = "epilogue in ('add', 'add_relu')"
// RELU     = "epilogue in ('relu', 'add_relu')"
// LANES    = "lanes"
// PACKS    = "c // lanes"
// ACROSS   = "8 if PACKS % 8 == 0 else 4 if PACKS % 4 == 0 else 2 - PACKS % 2"
// DOWN     = "BLOCK // ACROSS"
// GROUPS   = "PACKS // ACROSS"
// CHANNELS = "ACROSS * LANES"
// KEPT     = "(232448 - BLOCK // 32 * (CHANNELS * 8 + 12) - CHANNELS * 16) // (BLOCK * 16)"
//
// [workspace]
// parts = "2 * c * max(1, min(sm_count // GROUPS, cdiv(n * h * w, DOWN)))"
//
// [[launch]]
// kernel      = "batchnorm2d_train_nhwc_grid"
// grid        = ["max(1, min(sm_count // GROUPS, cdiv(n * h * w, DOWN)))", "GROUPS"]
// block       = ["BLOCK"]
// shared      = "KEPT * BLOCK * 16"
// args        = [
//   "x", "scale", "shift", "running_mean", "running_variance", "residual?", "out", "mean", "rstd",
//   "new_running_mean", "new_running_variance", "parts", "n * h * w", "momentum_percent",
// ]
// cooperative = true
// ///
//
// A block (one per multiprocessor) processes ACROSS vectors of channels of some pixels. It keeps the first KEPT steps
// in shared memory, together 30 MB on an H200; of the other steps it keeps only the moments. Then the blocks that
// share channels exchange moments once and wait for each other. In the second pass, a block starts with the pixels that
// it has read last, which the L2 cache still holds, and ends with those in shared memory. So most images are read once,
// and there are two launches fewer. UNROLL vectors per thread are in flight, also during the wait. A thread adds up
// differences from its first pixel, so a mean of many standard deviations loses no precision, and no pixel needs a
// division. The first pass starts at the end of x, which the previous kernel wrote last, so that the L2 cache may still
// hold it. The number of parts depends on the GPU; the order of each sum is fixed. Limits: HBM, and a wait of a few
// microseconds if images are small.

#include <opbench/resident_grid.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Packed<T, LANES> Pack;
constexpr int WARPS = BLOCK / 32;
constexpr int SHARING = BLOCK / CHANNELS < 32 ? BLOCK / CHANNELS : 32;  // threads that merge the parts of a channel

__device__ unsigned arrived[GROUPS];

// Moments of a channel's pixels; squares: the sum of (x - mean)^2.
struct Moments { float mean, squares; };

// Return the moments of several parts of a channel together, in each of its SHARING threads, which load `batch` parts
// at once. `pixels(i)`: the number of pixels of part i; `share`: 1 / the number of pixels of all parts.
// If part 0 is empty, all parts are.
template <int batch, class Part, class Pixels>
__device__ __forceinline__ Moments merged(unsigned parts, const Part& part, const Pixels& pixels, float share) {
    const float pivot = part(0).x;
    float sum = 0.0f, squares = 0.0f;
    for (unsigned first = threadIdx.x % SHARING; first < parts; first += batch * SHARING) {
        float2 others[batch];
#pragma unroll
        for (int k = 0; k < batch; ++k)
            if (first + k * SHARING < parts) others[k] = part(first + k * SHARING);
#pragma unroll
        for (int k = 0; k < batch; ++k) {
            if (first + k * SHARING >= parts) break;
            const float distance = others[k].x - pivot, weighted = pixels(first + k * SHARING) * distance;
            sum += weighted;
            squares += others[k].y + weighted * distance;
        }
    }
#pragma unroll
    for (int step = SHARING / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
        squares += __shfl_xor_sync(0xffffffffu, squares, step);
    }
    const float distance = sum * share;
    return {pivot + distance, squares - sum * distance};
}

__device__ __forceinline__ float inverse(float pixels) { return pixels > 0.0f ? 1.0f / pixels : 0.0f; }

extern "C" __global__ void __launch_bounds__(BLOCK, 1)
    batchnorm2d_train_nhwc_grid(const Pack* __restrict__ x, const float* __restrict__ scale,
                                const float* __restrict__ shift, const float* running_mean,
                                const float* running_variance,
#if ADD
                                const Pack* __restrict__ residual,
#endif
                                Pack* __restrict__ out, float* __restrict__ mean_out, float* __restrict__ rstd_out,
                                float* new_running_mean, float* new_running_variance, float2* parts, unsigned pixels,
                                int momentum_percent) {
    // x, residual, out [pixels][PACKS]; parts [PACKS * LANES][gridDim.x]; the others [PACKS * LANES]; the new running
    // statistics may overwrite the old ones
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float2 warps[WARPS][CHANNELS + 1];
    __shared__ float counts[WARPS], centres[CHANNELS], variances[CHANNELS], factors[CHANNELS], offsets[CHANNELS];
    const unsigned t = threadIdx.x, column = t % ACROSS, warp = t / 32, lane = t % 32;
    const PartOfPixels<DOWN, ACROSS, PACKS> part(pixels);
    const int count = part.count;
    const auto at = [&](int k) { return part.at(k); };
    Pack* const cached_packs = reinterpret_cast<Pack*>(shared) + t;

    Pack packs[UNROLL] = {};  // loads in flight
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        if (u < count) packs[u] = x[at(u)];
    float pivot[LANES], sums[LANES] = {}, squares[LANES] = {};  // sums of differences from the pivot
#pragma unroll
    for (int i = 0; i < LANES; ++i) pivot[i] = lane_of<T>(packs[0], i);
#pragma unroll 1
    for (int k = 0; k < count; k += UNROLL) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (k + u >= count) break;
            if (k + u < KEPT) cached_packs[(k + u) * BLOCK] = packs[u];
#pragma unroll
            for (int i = 0; i < LANES; ++i) {
                const float difference = lane_of<T>(packs[u], i) - pivot[i];
                sums[i] += difference;
                squares[i] += difference * difference;
            }
            if (k + u + UNROLL < count) packs[u] = x[at(k + u + UNROLL)];
        }
    }

    // Merge the moments of the pixels of a warp, then of the block, then of all blocks.
    const float thread_pixels = count;
    float warp_pixels = thread_pixels;
#pragma unroll
    for (int step = 16; step >= ACROSS; step /= 2) warp_pixels += __shfl_xor_sync(0xffffffffu, warp_pixels, step);
    const float inverse_thread_pixels = inverse(thread_pixels), inverse_warp_pixels = inverse(warp_pixels),
                inverse_all_pixels = inverse(pixels);
#pragma unroll
    for (int i = 0; i < LANES; ++i) {
        const float distance = sums[i] * inverse_thread_pixels, mean = pivot[i] + distance;
        const float centre = __shfl_sync(0xffffffffu, mean, column);
        float sum = thread_pixels * (mean - centre), squared = squares[i] - sums[i] * distance + sum * (mean - centre);
#pragma unroll
        for (int step = 16; step >= ACROSS; step /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
            squared += __shfl_xor_sync(0xffffffffu, squared, step);
        }
        if (lane < ACROSS) {
            const float mean_shift = sum * inverse_warp_pixels;
            warps[warp][column * LANES + i] = make_float2(centre + mean_shift, squared - sum * mean_shift);
        }
    }
    if (lane == 0) counts[warp] = warp_pixels;
    __syncthreads();
    const unsigned own_channel = t / SHARING, channel = blockIdx.y * CHANNELS + own_channel;
    float factor_scale = 0.0f, factor_shift = 0.0f;
    if (own_channel < CHANNELS) {
        const Moments block = merged<2>(
            WARPS, [&](unsigned i) { return warps[i][own_channel]; }, [&](unsigned i) { return counts[i]; },
            inverse(part.size(blockIdx.x)));
        if (t % SHARING == 0) parts[(size_t)channel * gridDim.x + blockIdx.x] = make_float2(block.mean, block.squares);
        factor_scale = scale[channel];
        factor_shift = shift[channel];
    }
    // The second pass: first the pixels that must be read again, the last one first; then the pixels in shared memory.
    const int reread_count = max(count - KEPT, 0);
    const auto second_pass_index = [&](int j) { return at(j < reread_count ? count - 1 - j : j - reread_count); };
#if ADD
    Pack added[UNROLL];
#endif
    const auto load = [&](int u, int j) {
        if (j < reread_count) packs[u] = __ldcs(x + second_pass_index(j));
#if ADD
        if (j < count) added[u] = __ldcs(residual + second_pass_index(j));
#endif
    };
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) load(u, u);
    wait_for_blocks(&arrived[blockIdx.y], gridDim.x);
    if (own_channel < CHANNELS) {
        const Moments all = merged<9>(
            gridDim.x, [&](unsigned i) { return __ldcg(parts + (size_t)channel * gridDim.x + i); },
            [&](unsigned i) { return (float)part.size(i); }, inverse_all_pixels);
        const float variance = fmaxf(all.squares, 0.0f) * inverse_all_pixels;
        if (t % SHARING == 0) {
            centres[own_channel] = all.mean;
            variances[own_channel] = variance;
            factors[own_channel] = rsqrtf(variance + 1e-5f) * factor_scale;
            offsets[own_channel] = factor_shift;
        }
    }
    __syncthreads();
    float centre[LANES], factor[LANES], offset[LANES];
#pragma unroll
    for (int i = 0; i < LANES; ++i) {
        centre[i] = centres[column * LANES + i];
        factor[i] = factors[column * LANES + i];
        offset[i] = offsets[column * LANES + i];
    }
#pragma unroll 1
    for (int j = 0; j < count; j += UNROLL) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (j + u >= count) break;
            const unsigned i = second_pass_index(j + u);
            if (j + u >= reread_count) packs[u] = cached_packs[(j + u - reread_count) * BLOCK];
            Vector<T, LANES> result;
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                float value = fmaf(lane_of<T>(packs[u], lane) - centre[lane], factor[lane], offset[lane]);
#if ADD
                value += lane_of<T>(added[u], lane);
#endif
#if RELU
                value = fmaxf(value, 0.0f);
#endif
                result.lane(lane) = (T)value;
            }
            if (j + u < reread_count)
                __stcs(out + i, result.raw);  // streaming store, so that the L2 cache keeps x
            else
                out[i] = result.raw;
            load(u, j + u + UNROLL);
        }
    }
    if (blockIdx.x != 0 || t >= CHANNELS) return;
    const unsigned stored = blockIdx.y * CHANNELS + t;
    const float momentum = momentum_percent / 100.0f, variance = variances[t];
    const float unbiased = pixels > 1 ? variance * ((float)pixels / (float)(pixels - 1)) : variance;
    mean_out[stored] = centres[t];
    rstd_out[stored] = rsqrtf(variance + 1e-5f);
    new_running_mean[stored] = (1.0f - momentum) * running_mean[stored] + momentum * centres[t];
    new_running_variance[stored] = (1.0f - momentum) * running_variance[stored] + momentum * unbiased;
}
