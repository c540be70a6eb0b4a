// /// opbench
// title     = "nchw: 16-byte accesses, the group in registers, with as many threads as it needs"
// builds_on = "registers"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "fewer_passes",
// ]
// tune      = { ITEMS = [4, 8, 2], STREAM = [0, 1] }
// supports  = { dtype = ["f32", "bf16"], activation = ["none", "silu"] }
// requires  = ["THREADS <= 1024", "THREADS * (4 * ITEMS + 32) <= 65536"]
//
// [define]
// BF16             = "dtype == 'bf16'"
// SILU             = "activation == 'silu'"
// GROUPS           = "groups"
// WIDTH            = "width"
// PIXELS           = "pixels"
// LANES            = "lanes"
// VECTORS          = "width * pixels // lanes"
// THREADS          = "8 if VECTORS <= 8 else (16 if VECTORS <= 16 else 32 * cdiv(VECTORS, 32 * ITEMS))"
// GROUPS_PER_BLOCK = "max(1, 128 // THREADS)"
//
// [[launch]]
// kernel = "groupnorm_vectorised"
// grid   = ["cdiv(batch * groups, GROUPS_PER_BLOCK)"]
// block  = ["THREADS", "GROUPS_PER_BLOCK"]
// args   = ["x", "weight", "bias", "out", "mean", "rstd", "batch * groups"]
// ///
//
// In nchw a group is contiguous, so it is treated as a row, and each thread keeps ITEMS vectors of 16 bytes of it in
// registers. All elements of a vector belong to one channel. Small groups share a block. Limits: the registers of a
// multiprocessor are enough for one or two large groups only, so memory is idle while their blocks compute sums; groups
// larger than 8 vectors for each of 1024 threads need the earlier variants.

#include <opbench/row_norm.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef RowPart<T, WIDTH * PIXELS, LANES, THREADS> Group;
constexpr int WARPS = (THREADS + 31) / 32;  // of a group

__device__ __forceinline__ float activated(float value) {
#if SILU
    return value / (1.0f + __expf(-value));
#else
    return value;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS* GROUPS_PER_BLOCK)
    groupnorm_vectorised(const T* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                         T* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, int all) {
    // x, out [all][WIDTH][PIXELS]; weight, bias [GROUPS][WIDTH]; mean, rstd [all]
    __shared__ float sums[GROUPS_PER_BLOCK][WARPS], squared[GROUPS_PER_BLOCK][WARPS];
    const int group =
        // may exceed the last group: all threads take part in shuffles and barriers
        blockIdx.x * GROUPS_PER_BLOCK + threadIdx.y;
    Group own;
    own.load<STREAM>(x, group, group < all);
    const float centre = over_row<false, THREADS>(own.sum(), sums) / (WIDTH * PIXELS);
    const float factor = rsqrtf(over_row<false, THREADS>(own.squares(centre), squared) / (WIDTH * PIXELS) + 1e-5f);
    if (group >= all) return;
#pragma unroll
    for (int k = 0; k < Group::items; ++k) {
        if (!Group::has_vector(k)) break;
        const int channel = group % GROUPS * WIDTH + Group::index(k) * LANES / PIXELS;
        const float slope = factor * weight[channel], shift = bias[channel];
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            own.set(k, lane, activated((own.value(k, lane) - centre) * slope + shift));
        }
    }
    own.store<STREAM>(out, group);
    if (threadIdx.x != 0) return;
    mean[group] = centre;
    rstd[group] = factor;
}
