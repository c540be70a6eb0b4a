// /// opbench
// title     = "one block per row: coalesced loads, tree reduction in shared memory"
// builds_on = "thread_per_row"
// mechanism = ["coalesced", "shared_memory_tile"]
// tune      = { BLOCK = [256, 512, 1024] }
// supports  = { filter = ["top_k_top_p", "top_k", "top_p"], dtype = ["f32", "bf16", "f16"] }
//
// [define]
// BF16  = "dtype == 'bf16'"
// F16   = "dtype == 'f16'"
// TOP_K = "filter != 'top_p'"
// TOP_P = "filter != 'top_k'"
//
// [[launch]]
// kernel = "sampling_block_per_row"
// grid   = ["rows"]
// block  = ["BLOCK"]
// args   = ["probabilities", "top_k?", "top_p?", "uniform", "token", "probability", "cols"]
// ///
//
// The last pass needs running sums: the block reads BLOCK elements (a tile) at a time and adds up their masses; only in
// the tile that contains the token, one thread loops over the elements. Limits: every pass ends with log2(BLOCK)
// barriers; a load moves only one element; a row is read up to 63 times, after the first time from the L2 cache.
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

// Return the sum over the threads of the block, in each of them.
__device__ __forceinline__ Mass over_block(Mass value, Mass* partial) {
    partial[threadIdx.x] = value;
    __syncthreads();
    for (int distance = BLOCK / 2; distance > 0; distance /= 2) {
        if (threadIdx.x < distance) partial[threadIdx.x] += partial[threadIdx.x + distance];
        __syncthreads();
    }
    const Mass sum = partial[0];
    __syncthreads();  // all threads have read `partial` before it is used again
    return sum;
}

// Return the mass, or the number, of the elements whose code is at least `limit`.
template <bool number>
__device__ Mass kept(const T* row, int cols, unsigned limit, Mass* partial) {
    Mass sum = 0;
    for (int i = threadIdx.x; i < cols; i += BLOCK) {
        const float p = clamped((float)row[i]);
        if (code_of(p) >= limit) sum += number ? 1 : fixed_point_mass(p);
    }
    return over_block(sum, partial);
}

// Return the largest code such that its elements and all larger ones have at least `wanted` mass or number; 0 if even
// all elements have less.
template <bool number>
__device__ unsigned largest_limit(const T* row, int cols, Mass wanted, Mass* partial) {
    unsigned low = 0, high = CODE_OF_ONE + 1;
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        (kept<number>(row, cols, middle, partial) >= wanted ? low : high) = middle;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    sampling_block_per_row(const T* __restrict__ probabilities,
#if TOP_K
                           const int* __restrict__ top_k,
#endif
#if TOP_P
                           const float* __restrict__ top_p,
#endif
                           const float* __restrict__ uniform, int* __restrict__ token, float* __restrict__ probability,
                           int cols) {
    // probabilities [rows][cols]; top_k, top_p, uniform, token, probability [rows]
    __shared__ Mass partial[BLOCK];
    const int r = blockIdx.x;
    const T* row = probabilities + (size_t)r * cols;
    unsigned limit = 0;
#if TOP_K
    limit = largest_limit<true>(row, cols, max(1, min(top_k[r], cols)), partial);
#endif
    Mass total = kept<false>(row, cols, limit, partial);
#if TOP_P
    limit = largest_limit<false>(row, cols, max((Mass)1, part_of(total, steps_of(top_p[r]), 0xffffff)), partial);
    total = kept<false>(row, cols, limit, partial);
#endif
    if (total == 0) {
        if (threadIdx.x == 0) {
            token[r] = -1;
            probability[r] = 0.0f;
        }
        return;
    }
    const Mass wanted = part_of(total, min(steps_of(uniform[r]), (Mass)0xffffff), 0);
    Mass before = 0;  // mass of earlier tiles
    for (int first = 0; before <= wanted; first += BLOCK) {
        const int i = first + threadIdx.x;
        const float p = i < cols ? clamped((float)row[i]) : 0.0f;
        const Mass sum = over_block(code_of(p) >= limit ? fixed_point_mass(p) : 0, partial);
        if (before + sum > wanted && threadIdx.x == 0) {
            Mass running = before;
            for (int j = first; running <= wanted; ++j) {
                const float q = clamped((float)row[j]);
                if (code_of(q) < limit) continue;
                running += fixed_point_mass(q);
                if (running <= wanted) continue;
                token[r] = j;
                probability[r] = (float)((double)fixed_point_mass(q) / (double)total);
            }
        }
        before += sum;
    }
}
