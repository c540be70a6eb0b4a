// /// opbench
// title     = "16-byte loads, sums by warp shuffles; each pass tests several thresholds and finds BITS bits"
// builds_on = "block_per_row"
// mechanism = [
//     "coalesced", "vectorised_access", "warp_shuffle", "fewer_barriers", "fewer_passes", "compile_time_sizes",
// ]
// tune      = { BLOCK = [512, 1024], BITS = [2, 3, 1] }
// supports  = { filter = ["top_k_top_p", "top_k", "top_p"], dtype = ["f32", "bf16", "f16"] }
//
// [define]
// BF16    = "dtype == 'bf16'"
// F16     = "dtype == 'f16'"
// TOP_K   = "filter != 'top_p'"
// TOP_P   = "filter != 'top_k'"
// LANES   = "lanes"
// BYTES   = "(4 if dtype == 'f32' else 2) * LANES"
// PACK    = "'unsigned short' if BYTES == 2 else 'unsigned' if BYTES == 4 else 'uint2' if BYTES == 8 else 'uint4'"
// VECTORS = "cols // lanes"
//
// [[launch]]
// kernel = "sampling_warp_sums"
// grid   = ["rows"]
// block  = ["BLOCK"]
// args   = ["probabilities", "top_k?", "top_p?", "uniform", "token", "probability"]
// ///
//
// A pass compares each element with 2^BITS - 1 limits, so 30 bits take 30 / BITS passes; bf16 and f16 have fewer bits.
// Warps add by shuffles, and then one barrier is enough to add the sums of the warps. Limit: the comparisons, 2^BITS -
// 1 per element, each with a 64-bit addition; but there are only a third to a half of the passes.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#elif F16
#include <cuda_fp16.h>
typedef __half T;
#else
typedef float T;
#endif
typedef unsigned long long Mass;  // in units of 2^-31

// Return the probability clamped to the range from 0 to 1; 0 for NaN.
__device__ __forceinline__ float clamped(float p) { return p > 0.0f ? fminf(p, 1.0f) : 0.0f; }

// Return the bits of a clamped probability; as integers they have the same order as the probabilities.
__device__ __forceinline__ unsigned code_of(float p) { return __float_as_uint(p); }
constexpr unsigned CODE_OF_ONE = 0x3f800000;

__device__ __forceinline__ Mass fixed_point_mass(float p) { return (unsigned)(p * 2147483648.0f); }

// Return a share between 0 and 1 as a number of steps of 2^-24.
__device__ __forceinline__ Mass steps_of(float share) { return (unsigned)(clamped(share) * 16777216.0f); }

// Return (total * steps + rounding) / 2^24; the product itself may exceed 64 bits.
__device__ __forceinline__ Mass part_of(Mass total, Mass steps, Mass rounding) {
    return (total >> 24) * steps + (((total & 0xffffff) * steps + rounding) >> 24);
}

constexpr int WARPS = BLOCK / 32, LIMITS = (1 << BITS) - 1;
constexpr int LOWEST_BIT = BF16 ? 16 : F16 ? 13 : 0;  // lowest bit of a code that can be 1
typedef PACK Pack;                                    // the vector of one load or store

__device__ __forceinline__ float element(const Pack& pack, int i) {
    return (float)reinterpret_cast<const T*>(&pack)[i];
}

// Compute the masses, or numbers, of the elements whose codes are at least first, first + step, ...; every thread gets
// them.
template <bool number, int limits>
__device__ __forceinline__ void masses_above(const T* row, unsigned first, unsigned step, Mass (&sum)[limits],
                                             Mass (*sums)[WARPS]) {
#pragma unroll
    for (int j = 0; j < limits; ++j) sum[j] = 0;
    for (int vector = threadIdx.x; vector < VECTORS; vector += BLOCK) {
        const Pack pack = reinterpret_cast<const Pack*>(row)[vector];
#pragma unroll
        for (int i = 0; i < LANES; ++i) {
            const float p = clamped(element(pack, i));
#pragma unroll
            for (int j = 0; j < limits; ++j)
                if (code_of(p) >= first + j * step) sum[j] += number ? 1 : fixed_point_mass(p);
        }
    }
    __syncthreads();  // all threads have read the sums of the previous pass
#pragma unroll
    for (int j = 0; j < limits; ++j) {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], distance);
        if (threadIdx.x % 32 == 0) sums[j][threadIdx.x / 32] = sum[j];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < limits; ++j) {
        sum[j] = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) sum[j] += sums[j][warp];
    }
}

// Return the largest code such that its elements and all larger ones have at least `wanted` mass or number; 0 if even
// all elements have less.
template <bool number>
__device__ __forceinline__ unsigned largest_limit(const T* row, Mass wanted, Mass (*sums)[WARPS]) {
    unsigned limit = 0;
    for (int shift = 30 - BITS; shift + BITS > LOWEST_BIT; shift -= BITS) {
        Mass sum[LIMITS];
        masses_above<number>(row, limit + (1u << shift), 1u << shift, sum, sums);
        unsigned digit = 0;
#pragma unroll
        for (int j = 0; j < LIMITS; ++j) digit += sum[j] >= wanted;  // sums fall as limits rise
        limit += digit << shift;
    }
    return limit;
}

// Draw the token of a row: the first kept element whose running mass is greater than `wanted`.
__device__ __forceinline__ void draw(const T* row, unsigned limit, Mass total, Mass wanted, Mass (*sums)[WARPS],
                                     int* token, float* probability) {
    if (total == 0) {
        if (threadIdx.x == 0) {
            *token = -1;
            *probability = 0.0f;
        }
        return;
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Mass before = 0;  // mass of earlier tiles
    for (int first = 0, buffer = 0; before <= wanted; first += BLOCK, buffer ^= 1) {
        const int vector = first + threadIdx.x;
        Pack pack = {};
        if (vector < VECTORS) pack = reinterpret_cast<const Pack*>(row)[vector];
        Mass thread_mass = 0;
#pragma unroll
        for (int i = 0; i < LANES; ++i) {
            const float p = clamped(element(pack, i));
            if (code_of(p) >= limit) thread_mass += fixed_point_mass(p);
        }
        Mass running = thread_mass;  // running mass, including all lanes up to this one
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const Mass other = __shfl_up_sync(0xffffffffu, running, step);
            if (lane >= step) running += other;
        }
        if (lane == 31) sums[buffer][warp] = running;
        __syncthreads();  // one barrier per tile: the next tile writes to the other row of `sums`
        Mass tile = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            if (w == warp) running += before + tile;
            tile += sums[buffer][w];
        }
        if (running - thread_mass <= wanted && wanted < running) {
            running -= thread_mass;
#pragma unroll
            for (int i = 0; i < LANES; ++i) {
                const float p = clamped(element(pack, i));
                if (code_of(p) < limit || running > wanted) continue;
                running += fixed_point_mass(p);
                if (running <= wanted) continue;
                *token = vector * LANES + i;
                *probability = (float)((double)fixed_point_mass(p) / (double)total);
            }
        }
        before += tile;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    sampling_warp_sums(const T* __restrict__ probabilities,
#if TOP_K
                       const int* __restrict__ top_k,
#endif
#if TOP_P
                       const float* __restrict__ top_p,
#endif
                       const float* __restrict__ uniform, int* __restrict__ token, float* __restrict__ probability) {
    // probabilities [rows][cols]; top_k, top_p, uniform, token, probability [rows]
    __shared__ Mass sums[LIMITS > 2 ? LIMITS : 2][WARPS];
    const int r = blockIdx.x;
    const T* row = probabilities + (size_t)r * VECTORS * LANES;
    unsigned limit = 0;
    Mass total[1];
#if TOP_K
    limit = largest_limit<true>(row, max(1, min(top_k[r], VECTORS * LANES)), sums);
#endif
    masses_above<false>(row, limit, 0, total, sums);
#if TOP_P
    limit = largest_limit<false>(row, max((Mass)1, part_of(total[0], steps_of(top_p[r]), 0xffffff)), sums);
    masses_above<false>(row, limit, 0, total, sums);
#endif
    __syncthreads();  // all threads have read the sums
    const Mass wanted = part_of(total[0], min(steps_of(uniform[r]), (Mass)0xffffff), 0);
    draw(row, limit, total[0], wanted, sums, token + r, probability + r);
}
