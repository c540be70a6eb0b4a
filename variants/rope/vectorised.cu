// /// opbench
// title     = "16-byte accesses, one grid dimension for the tokens: the heads of a token share cosines and sines"
// builds_on = "thread_per_pair"
// mechanism = ["coalesced", "vectorised_access", "compile_time_sizes"]
// tune      = { BLOCK = [128, 64, 256] }
// supports  = { pairs = ["halves", "neighbours"], direction = ["forward", "backward"], dtype = ["f32", "bf16"] }
// requires  = ["cdiv(heads * VECTORS, BLOCK) <= 65535 and batch <= 65535"]
//
// [define]
// BF16     = "dtype == 'bf16'"
// HALVES   = "pairs == 'halves'"
// BACKWARD = "direction == 'backward'"
// LANES    = "lanes"
// BYTES    = "(2 if dtype == 'bf16' else 4) * LANES"
// PACK     = "'unsigned short' if BYTES == 2 else 'unsigned' if BYTES == 4 else 'uint2' if BYTES == 8 else 'uint4'"
// HALF     = "half"
// VECTORS  = "half // lanes if pairs == 'halves' else depth // lanes"
//
// [[launch]]
// kernel = "rope_vectorised"
// grid   = ["tokens", "cdiv(heads * VECTORS, BLOCK)", "batch"]
// block  = ["BLOCK"]
// args   = ["x", "cos", "sin", "out", "heads"]
// ///
//
// The blocks of a token read the same rows of the tables, from a cache. If pairs consist of the two halves of a head, a
// thread has two vectors that are half a head apart; if pairs are neighbours, it has one vector of whole pairs. Limit:
// HBM.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int PAIRS = HALVES ? LANES : LANES / 2;  // pairs of a thread

// The elements of one load or store.
struct Vector {
    PACK raw;
    __device__ __forceinline__ T& lane(int i) { return reinterpret_cast<T*>(&raw)[i]; }
};

// x, out [batch][tokens][heads][2 * HALF]; cos, sin [tokens][HALF]
extern "C" __global__ void __launch_bounds__(BLOCK)
    rope_vectorised(const T* __restrict__ x, const float* __restrict__ cos, const float* __restrict__ sin,
                    T* __restrict__ out, int heads) {
    const int index = blockIdx.y * BLOCK + threadIdx.x, head = index / VECTORS, place = index % VECTORS;
    if (head >= heads) return;
    const size_t row = ((size_t)blockIdx.z * gridDim.x + blockIdx.x) * heads + head;
    const size_t at = row * 2 * HALF + place * LANES;
    Vector first, second;
    first.raw = *reinterpret_cast<const decltype(first.raw)*>(x + at);
#if HALVES
    second.raw = *reinterpret_cast<const decltype(second.raw)*>(x + at + HALF);
#endif
    const size_t table = (size_t)blockIdx.x * HALF + place * PAIRS;
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
        const float c = cos[table + i], s = BACKWARD ? -sin[table + i] : sin[table + i];
        T& low = first.lane(HALVES ? i : 2 * i);
        T& high = HALVES ? second.lane(i) : first.lane(2 * i + 1);
        const float a = (float)low, b = (float)high;
        low = (T)(a * c - b * s);
        high = (T)(b * c + a * s);
    }
    *reinterpret_cast<decltype(first.raw)*>(out + at) = first.raw;
#if HALVES
    *reinterpret_cast<decltype(second.raw)*>(out + at + HALF) = second.raw;
#endif
}
