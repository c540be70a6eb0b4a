// /// opbench
// title     = "one 16-byte vector per thread, which uses all four random words of a Philox counter"
// builds_on = "scalar"
// mechanism = ["coalesced", "vectorised_access", "fewer_operations"]
// tune      = { BLOCK = [256, 128, 512], STREAM = [0, 1] }
// define    = { BF16 = "dtype == 'bf16'", TRAINING = "training == 'yes'", STEP = "counter == 'step'" }
// supports  = { training = ["no", "yes"], counter = ["zero", "step"], dtype = ["f32", "bf16"] }
//
// [[launch]]
// kernel = "dropout_vectorised"
// grid   = ["cdiv(n, BLOCK * (8 if dtype == 'bf16' else 4))"]
// block  = ["BLOCK"]
// args   = ["x", "step?", "out", "n", "seed", "threshold - 2 ** 31", "percent"]
// ///
//
// A quarter of the random arithmetic, computed while the vector of x is loaded, and 16 bytes per access. STREAM marks
// loads and stores evict-first in L2. Limit: HBM; in bf16, which has twice as many elements per byte, the
// multiplications take nearly as long.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int LANES = 16 / sizeof(T);

// Return ten rounds of Philox4x32 (Salmon, Moraes, Dror and Shaw, SC 2011) on the counter (group, step, 0, 0) with key
// (seed, 0).
__device__ __forceinline__ uint4 philox(unsigned group, unsigned step, unsigned seed) {
    uint4 word = make_uint4(group, step, 0, 0);
    unsigned key0 = seed, key1 = 0;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned high0 = __umulhi(word.x, 0xd2511f53u), low0 = word.x * 0xd2511f53u;
        const unsigned high1 = __umulhi(word.z, 0xcd9e8d57u), low1 = word.z * 0xcd9e8d57u;
        word = make_uint4(high1 ^ word.y ^ key0, low1, high0 ^ word.w ^ key1, low0);
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return word;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    dropout_vectorised(const T* __restrict__ x,
#if STEP
                       const int* __restrict__ step,
#endif
                       T* __restrict__ out, int n, unsigned seed, int shifted, int percent) {
    // the argument is an int, so the 32-bit threshold is passed minus 2^31
    const unsigned threshold = (unsigned)shifted + 0x80000000u;
    // x, out [n], both aligned to 16 bytes
    const unsigned first = (blockIdx.x * BLOCK + threadIdx.x) * LANES;
    if (first >= (unsigned)n) return;
    const bool whole = first + LANES <= (unsigned)n;
    uint4 v = make_uint4(0, 0, 0, 0);
    T* element = reinterpret_cast<T*>(&v);
    if (whole) {
#if STREAM
        v = __ldcs(reinterpret_cast<const uint4*>(x + first));
#else
        v = *reinterpret_cast<const uint4*>(x + first);
#endif
    } else {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            if (first + lane < (unsigned)n) element[lane] = x[first + lane];
        }
    }
#if TRAINING
#if STEP
    const unsigned word1 = (unsigned)*step;
#else
    const unsigned word1 = 0;
#endif
    const float factor = 100.0f / (100 - percent);
#pragma unroll
    for (int lane = 0; lane < LANES; lane += 4) {
        const uint4 word = philox((first + lane) / 4, word1, seed);
        element[lane] = (T)(word.x >= threshold ? (float)element[lane] * factor : 0.0f);
        element[lane + 1] = (T)(word.y >= threshold ? (float)element[lane + 1] * factor : 0.0f);
        element[lane + 2] = (T)(word.z >= threshold ? (float)element[lane + 2] * factor : 0.0f);
        element[lane + 3] = (T)(word.w >= threshold ? (float)element[lane + 3] * factor : 0.0f);
    }
#endif
    if (whole) {
#if STREAM
        __stcs(reinterpret_cast<uint4*>(out + first), v);
#else
        *reinterpret_cast<uint4*>(out + first) = v;
#endif
    } else {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            if (first + lane < (unsigned)n) out[first + lane] = element[lane];
        }
    }
}
