// /// opbench
// title     = "one thread per row: bisection of the probability threshold, one pass over the row per bit"
// tune      = { BLOCK = [64, 32, 128] }
// supports  = { filter = ["top_k_top_p", "top_k", "top_p"], dtype = ["f32", "bf16", "f16"] }
//
// [define]
// BF16  = "dtype == 'bf16'"
// F16   = "dtype == 'f16'"
// TOP_K = "filter != 'top_p'"
// TOP_P = "filter != 'top_k'"
//
// [[launch]]
// kernel = "sampling_thread_per_row"
// grid   = ["cdiv(rows, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["probabilities", "top_k?", "top_p?", "uniform", "token", "probability", "rows", "cols"]
// ///
//
// Nothing is sorted: as a limit rises, the number of elements that are at least as large as the limit falls, and so
// does their mass. The bits of numbers between 0 and 1, taken as integers, have the same order as the numbers, so 30
// passes find the largest limit that keeps enough elements. Masses are integers, so any order of summation gives the
// same token. Limits: neighbouring lanes read addresses that are a whole row apart; few rows leave the GPU idle; a row
// is read up to 63 times.
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

// Return the mass, or the number, of the elements whose code is at least `limit`.
template <bool number>
__device__ Mass kept(const T* row, int cols, unsigned limit) {
    Mass sum = 0;
    for (int i = 0; i < cols; ++i) {
        const float p = clamped((float)row[i]);
        if (code_of(p) >= limit) sum += number ? 1 : fixed_point_mass(p);
    }
    return sum;
}

// Return the largest code such that its elements and all larger ones have at least `wanted` mass or number; 0 if even
// all elements have less.
template <bool number>
__device__ unsigned largest_limit(const T* row, int cols, Mass wanted) {
    unsigned low = 0, high = CODE_OF_ONE + 1;
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        (kept<number>(row, cols, middle) >= wanted ? low : high) = middle;
    }
    return low;
}

extern "C" __global__ void sampling_thread_per_row(const T* __restrict__ probabilities,
#if TOP_K
                                                   const int* __restrict__ top_k,
#endif
#if TOP_P
                                                   const float* __restrict__ top_p,
#endif
                                                   const float* __restrict__ uniform, int* __restrict__ token,
                                                   float* __restrict__ probability, int rows, int cols) {
    // probabilities [rows][cols]; top_k, top_p, uniform, token, probability [rows]
    const int r = blockIdx.x * BLOCK + threadIdx.x;
    if (r >= rows) return;
    const T* row = probabilities + (size_t)r * cols;
    unsigned limit = 0;
#if TOP_K
    limit = largest_limit<true>(row, cols, max(1, min(top_k[r], cols)));
#endif
    Mass total = kept<false>(row, cols, limit);
#if TOP_P
    limit = largest_limit<false>(row, cols, max((Mass)1, part_of(total, steps_of(top_p[r]), 0xffffff)));
    total = kept<false>(row, cols, limit);
#endif
    const Mass wanted = part_of(total, min(steps_of(uniform[r]), (Mass)0xffffff), 0);
    int drawn = -1;
    float share = 0.0f;
    Mass sum = 0;
    for (int i = 0; i < cols && sum <= wanted; ++i) {
        const float p = clamped((float)row[i]);
        if (code_of(p) < limit) continue;
        sum += fixed_point_mass(p);
        if (sum <= wanted) continue;
        drawn = i;
        share = (float)((double)fixed_point_mass(p) / (double)total);
    }
    token[r] = drawn;
    probability[r] = share;
}
