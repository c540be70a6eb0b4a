// Elements, vectors and sums over threads, for kernels on CUDA cores from a ladder's fourth variant on.
#pragma once
#include <cuda_bf16.h>

namespace opbench {

template <bool is_bf16>
struct ElementType {
    typedef float type;
};
template <>
struct ElementType<true> {
    typedef __nv_bfloat16 type;
};
// The type of a tensor's elements: bf16 or float.
template <bool is_bf16>
using Element = typename ElementType<is_bf16>::type;

// An integer or vector type with this number of bytes, for one load or store. The compiler would copy a structure of
// __nv_bfloat16 member by member.
template <int bytes>
struct Raw;
template <>
struct Raw<16> {
    typedef uint4 type;
};
template <>
struct Raw<8> {
    typedef uint2 type;
};
template <>
struct Raw<4> {
    typedef unsigned type;
};
template <>
struct Raw<2> {
    typedef unsigned short type;
};
template <>
struct Raw<1> {
    typedef unsigned char type;
};

// The vector type of `count` elements, at most 16 bytes, for one load or store.
template <class T, int count>
using Packed = typename Raw<sizeof(T) * count>::type;

// Return the widest vector, of 8, 4, 2 or 1 elements but at most `most`, that divides both a and b.
constexpr int widest_vector(int most, int a, int b) {
    int width = most;
    while (a % width != 0 || b % width != 0) width /= 2;
    return width;
}

// Return element `lane` of a vector of T, as a float.
template <class T, class Pack>
__device__ __forceinline__ float lane_of(const Pack& pack, int lane) {
    return (float)reinterpret_cast<const T*>(&pack)[lane];
}

// A vector whose elements can be written.
template <class T, int count>
struct Vector {
    Packed<T, count> raw;
    __device__ __forceinline__ T& lane(int i) { return reinterpret_cast<T*>(&raw)[i]; }
};

// Load or store a vector; with `stream` evict-first, for data that is not read again soon.
template <bool stream, class Pack>
__device__ __forceinline__ Pack load_packed(const Pack* source) {
    if constexpr (stream)
        return __ldcs(source);
    else
        return *source;
}
template <bool stream, class Pack>
__device__ __forceinline__ void store_packed(Pack* target, Pack pack) {
    if constexpr (stream)
        __stcs(target, pack);
    else
        *target = pack;
}

// Return the sum over the threads of a warp, in its lane 0.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xffffffffu, value, distance);
    return value;
}

// Compute the sums over a block of `threads`, in every thread; `warps` is shared memory for one value per warp.
template <int threads, int count>
__device__ __forceinline__ void block_sums(float (&value)[count], float (*warps)[count]) {
#pragma unroll
    for (int k = 0; k < count; ++k) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) value[k] += __shfl_xor_sync(0xffffffffu, value[k], step);
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32][k] = value[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < count; ++k) {
        value[k] = warps[0][k];
        for (int warp = 1; warp < threads / 32; ++warp) value[k] += warps[warp][k];
    }
}

// Return the maximum or the sum over the `threads` threads of a row (threadIdx.y), in each of them; `shared` has a line
// per row.
template <bool maximum, int threads, int warps>
__device__ __forceinline__ float over_row(float value, float (*shared)[warps]) {
#pragma unroll
    for (int step = (threads < 32 ? threads : 32) / 2; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, step);
        value = maximum ? fmaxf(value, other) : value + other;
    }
    if (warps == 1) return value;
    if (threadIdx.x % 32 == 0) shared[threadIdx.y][threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[threadIdx.y][0];
#pragma unroll
    for (int warp = 1; warp < warps; ++warp) {
        const float other = shared[threadIdx.y][warp];
        value = maximum ? fmaxf(value, other) : value + other;
    }
    return value;
}

// Compute the sums over the rows of a block of `threads`, for `across` columns, in every thread of a column.
template <int threads, int across, int count>
__device__ __forceinline__ void column_sums(float (&value)[count], float (*warps)[across][count]) {
#pragma unroll
    for (int k = 0; k < count; ++k) {
#pragma unroll
        for (int step = 16; step >= across; step /= 2) value[k] += __shfl_xor_sync(0xffffffffu, value[k], step);
        if (threadIdx.x % 32 < across) warps[threadIdx.x / 32][threadIdx.x % 32][k] = value[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < count; ++k) {
        value[k] = warps[0][threadIdx.x % across][k];
        for (int warp = 1; warp < threads / 32; ++warp) value[k] += warps[warp][threadIdx.x % across][k];
    }
}

}  // namespace opbench
