// /// opbench
// title     = "nhwc, one launch: shared memory keeps both images between the passes, what does not fit is read again"
// builds_on = "nhwc_vector"
// mechanism = [
//     "coalesced", "vectorised_access", "unrolled", "block_reduction", "fewer_barriers", "warp_shuffle",
//     "compile_time_sizes", "fewer_passes", "fused", "persistent", "split_k",
// ]
// tune      = { UNROLL = [4, 2] }
// supports  = { layout = ["nhwc"], dtype = ["f32", "bf16"], epilogue = ["none", "relu"] }
// requires  = ["n * c * h * w <= 4294966272", "lanes * (2 if dtype == 'bf16' else 4) == 16", "GROUPS <= 64"]
// compute_capability = "9.0"
//
// [define]
// BLOCK    = "512"
// BF16     = "dtype == 'bf16'"
// RELU     = "epilogue == 'relu'"
// LANES    = "lanes"
// PACKS    = "c // lanes"
// ACROSS   = "8 if PACKS % 8 == 0 else 4 if PACKS % 4 == 0 else 2 - PACKS % 2"
// DOWN     = "BLOCK // ACROSS"
// GROUPS   = "PACKS // ACROSS"
// CHANNELS = "ACROSS * LANES"
// KEPT     = "(232448 - BLOCK // 32 * (CHANNELS * 8 + 8) - CHANNELS * 8) // (BLOCK * 32)"
//
// [workspace]
// parts = "2 * c * max(1, min(sm_count // GROUPS, cdiv(n * h * w, DOWN)))"
//
// [[launch]]
// kernel      = "batchnorm2d_backward_nhwc_grid"
// grid        = ["max(1, min(sm_count // GROUPS, cdiv(n * h * w, DOWN)))", "GROUPS"]
// block       = ["BLOCK"]
// shared      = "KEPT * BLOCK * 32"
// args        = ["x", "dout", "scale", "shift", "mean", "rstd", "dx", "dscale", "dshift", "parts", "n * h * w"]
// cooperative = true
// ///
// A block (one per multiprocessor) processes ACROSS vectors of channels of some pixels. It keeps the first KEPT steps
// of both images in shared memory, together 30 MB on an H200; of the other steps it keeps only the sums. Then the
// blocks that share channels exchange their sums once and wait for each other. In the second pass, a block starts with
// the pixels that it has read last, which the L2 cache still holds, and ends with those in shared memory. So small
// images are read once, and there are two launches fewer. UNROLL vectors of each image per thread are in flight, also
// during the wait. The first pass starts at the end of the images, which the previous kernel wrote last, so that the L2
// cache may still hold it. The number of parts depends on the GPU; the order of each sum is fixed. Limits: HBM, and a
// wait of a few microseconds if images are small.

#include <opbench/batchnorm.cuh>
#include <opbench/resident_grid.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Packed<T, LANES> Pack;
typedef ChannelGradient<RELU> Channel;
constexpr int WARPS = BLOCK / 32;
constexpr int SHARING = BLOCK / CHANNELS < 32 ? BLOCK / CHANNELS : 32;  // threads that add the parts of a channel

__device__ unsigned arrived[GROUPS];

// Return the sums of several parts of a channel, in each of its SHARING threads, which load `batch` parts at once.
template <int batch, class Part>
__device__ __forceinline__ float2 added(unsigned parts, const Part& part) {
    float2 total = make_float2(0.0f, 0.0f);
    for (unsigned first = threadIdx.x % SHARING; first < parts; first += batch * SHARING) {
        float2 others[batch] = {};
#pragma unroll
        for (int k = 0; k < batch; ++k)
            if (first + k * SHARING < parts) others[k] = part(first + k * SHARING);
#pragma unroll
        for (int k = 0; k < batch; ++k) {
            total.x += others[k].x;
            total.y += others[k].y;
        }
    }
#pragma unroll
    for (int step = SHARING / 2; step > 0; step /= 2) {
        total.x += __shfl_xor_sync(0xffffffffu, total.x, step);
        total.y += __shfl_xor_sync(0xffffffffu, total.y, step);
    }
    return total;
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1)
    batchnorm2d_backward_nhwc_grid(const Pack* __restrict__ x, const Pack* __restrict__ dout,
                                   const float* __restrict__ scale, const float* __restrict__ shift,
                                   const float* __restrict__ mean, const float* __restrict__ rstd,
                                   Pack* __restrict__ dx, float* __restrict__ dscale, float* __restrict__ dshift,
                                   float2* parts, unsigned pixels) {
    // x, dout, dx [pixels][PACKS]; parts [PACKS * LANES][gridDim.x]; the others [PACKS * LANES]
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float2 warps[WARPS][CHANNELS + 1];
    __shared__ float constants[CHANNELS], slopes[CHANNELS];
    const unsigned t = threadIdx.x, column = t % ACROSS, warp = t / 32, lane = t % 32;
    const PartOfPixels<DOWN, ACROSS, PACKS> part(pixels);
    const int count = part.count;
    const auto at = [&](int k) { return part.at(k); };
    Pack* const cached_packs = reinterpret_cast<Pack*>(shared) + t;  // x and dout of a pixel, alternately

    Pack packs[UNROLL], gradient[UNROLL];  // loads in flight
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (u >= count) continue;
        packs[u] = x[at(u)];
        gradient[u] = dout[at(u)];
    }
    Channel channel_data[LANES];
#pragma unroll
    for (int i = 0; i < LANES; ++i) {
        const unsigned channel = blockIdx.y * CHANNELS + column * LANES + i;
        channel_data[i] = {mean[channel], rstd[channel], rstd[channel] * scale[channel], shift[channel]};
    }
    float sums[LANES] = {}, products[LANES] = {};  // of dy, and of dy * (x - mean)
#pragma unroll 1
    for (int k = 0; k < count; k += UNROLL) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (k + u >= count) break;
            if (k + u < KEPT) {
                cached_packs[2 * (k + u) * BLOCK] = packs[u];
                cached_packs[(2 * (k + u) + 1) * BLOCK] = gradient[u];
            }
#pragma unroll
            for (int i = 0; i < LANES; ++i) {
                const float centred = lane_of<T>(packs[u], i) - channel_data[i].mean;
                const float dy = channel_data[i].masked_gradient(centred, lane_of<T>(gradient[u], i));
                sums[i] += dy;
                products[i] += dy * centred;
            }
            if (k + u + UNROLL < count) {
                packs[u] = x[at(k + u + UNROLL)];
                gradient[u] = dout[at(k + u + UNROLL)];
            }
        }
    }

    // Add the sums over the pixels of a warp, then of the block, then of all blocks.
#pragma unroll
    for (int i = 0; i < LANES; ++i) {
#pragma unroll
        for (int step = 16; step >= ACROSS; step /= 2) {
            sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], step);
            products[i] += __shfl_xor_sync(0xffffffffu, products[i], step);
        }
        if (lane < ACROSS) warps[warp][column * LANES + i] = make_float2(sums[i], products[i]);
    }
    __syncthreads();
    const unsigned own_channel = t / SHARING, channel = blockIdx.y * CHANNELS + own_channel;
    const float share = 1.0f / (float)pixels;
    float own_rstd = 0.0f;
    if (own_channel < CHANNELS) {
        const float2 block = added<2>(WARPS, [&](unsigned i) { return warps[i][own_channel]; });
        if (t % SHARING == 0) parts[(size_t)channel * gridDim.x + blockIdx.x] = block;
        own_rstd = rstd[channel];
    }
    // The second pass: first the pixels that must be read again, the last one first; then the pixels in shared memory.
    const int reread_count = max(count - KEPT, 0);
    const auto second_pass_index = [&](int j) { return at(j < reread_count ? count - 1 - j : j - reread_count); };
    const auto load = [&](int u, int j) {
        if (j >= reread_count) return;
        packs[u] = __ldcs(x + second_pass_index(j));
        gradient[u] = __ldcs(dout + second_pass_index(j));
    };
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) load(u, u);
    wait_for_blocks(&arrived[blockIdx.y], gridDim.x);
    if (own_channel < CHANNELS) {
        const float2* const channel_parts = parts + (size_t)channel * gridDim.x;
        const float2 all = added<9>(gridDim.x, [&](unsigned i) { return __ldcg(channel_parts + i); });
        const float product = all.y * own_rstd;
        if (t % SHARING == 0) {
            constants[own_channel] = all.x * share;
            slopes[own_channel] = product * share * own_rstd;
        }
        if (t % SHARING == 0 && blockIdx.x == 0) {
            dshift[channel] = all.x;
            dscale[channel] = product;
        }
    }
    __syncthreads();
    float constant[LANES], slope[LANES];
#pragma unroll
    for (int i = 0; i < LANES; ++i) {
        constant[i] = constants[column * LANES + i];
        slope[i] = slopes[column * LANES + i];
    }
#pragma unroll 1
    for (int j = 0; j < count; j += UNROLL) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (j + u >= count) break;
            const unsigned i = second_pass_index(j + u);
            if (j + u >= reread_count) {
                packs[u] = cached_packs[2 * (j + u - reread_count) * BLOCK];
                gradient[u] = cached_packs[(2 * (j + u - reread_count) + 1) * BLOCK];
            }
            Vector<T, LANES> result;
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                const float centred = lane_of<T>(packs[u], lane) - channel_data[lane].mean;
                const float dy = channel_data[lane].masked_gradient(centred, lane_of<T>(gradient[u], lane));
                result.lane(lane) = (T)(channel_data[lane].factor * (dy - constant[lane] - centred * slope[lane]));
            }
            if (j + u < reread_count)
                __stcs(dx + i, result.raw);  // streaming store, so that the L2 cache keeps x and dout
            else
                dx[i] = result.raw;
            load(u, j + u + UNROLL);
        }
    }
}
