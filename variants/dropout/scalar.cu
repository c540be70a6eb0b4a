// /// opbench
// title    = "one thread per element, which uses one of the four random words of a Philox counter"
// mechanism = ["coalesced"]
// tune     = { BLOCK = [256, 128, 512] }
// define   = { BF16 = "dtype == 'bf16'", TRAINING = "training == 'yes'", STEP = "counter == 'step'" }
// supports = { training = ["no", "yes"], counter = ["zero", "step"], dtype = ["f32", "bf16"] }
//
// [[launch]]
// kernel = "dropout_scalar"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "step?", "out", "n", "seed", "threshold - 2 ** 31", "percent"]
// ///
//
// The first variant: a counter-based generator needs no state in memory, so a mask costs no bytes. Limits: three of
// four random words are not used, which costs about 60 instructions per element; one element per access.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

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

extern "C" __global__ void dropout_scalar(const T* __restrict__ x,
#if STEP
                                          const int* __restrict__ step,
#endif
                                          T* __restrict__ out, int n, unsigned seed, int shifted, int percent) {
    // the argument is an int, so the 32-bit threshold is passed minus 2^31
    const unsigned threshold = (unsigned)shifted + 0x80000000u;
    // x, out [n]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n) return;
#if TRAINING
#if STEP
    const unsigned word1 = (unsigned)*step;
#else
    const unsigned word1 = 0;
#endif
    const uint4 word = philox(i / 4, word1, seed);
    const unsigned bits = i % 4 == 0 ? word.x : i % 4 == 1 ? word.y : i % 4 == 2 ? word.z : word.w;
    out[i] = (T)(bits >= threshold ? (float)x[i] * (100.0f / (100 - percent)) : 0.0f);
#else
    out[i] = x[i];
#endif
}
