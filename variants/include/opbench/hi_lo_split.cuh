// float32 accuracy from 16-bit matrix instructions: represent a scaled float as the sum of a high and a low f16 number.
//
// The scale is a power of two that moves a row's largest element into [2^14, 2^15). Elements of at least 2^-17 of the
// largest then keep 22 bits in both numbers together; smaller ones have an error of 2^-40 of the largest, because f16
// has subnormal numbers. high * high + high * low + low * high lacks 2^-22 of each product. The scale is removed
// exactly. Inf becomes NaN.
#pragma once
#include <cuda_fp16.h>

#include <opbench/sums.cuh>

namespace opbench {

// Return the exponent of the scale for elements whose largest magnitude has these bits.
__device__ __forceinline__ int exponent_for(unsigned magnitude) {
    const int e = 14 + 127 - (int)(magnitude >> 23);
    return magnitude == 0 ? 0 : min(e, 126);
}
// Return the bits of the largest magnitude; as integers they have the same order as the magnitudes.
__device__ __forceinline__ unsigned largest(const float4& x) {
    return max(max(__float_as_uint(fabsf(x.x)), __float_as_uint(fabsf(x.y))),
               max(__float_as_uint(fabsf(x.z)), __float_as_uint(fabsf(x.w))));
}
__device__ __forceinline__ unsigned largest_of_warp(unsigned magnitude) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2)
        magnitude = max(magnitude, __shfl_xor_sync(0xffffffffu, magnitude, apart));
    return magnitude;
}

// Write high[0 .. 4) + low[0 .. 4) = x * scale; with one plane, only high.
template <int planes = 2>
__device__ __forceinline__ void split_four(float4 x, const float4& scale, __half* high, __half* low) {
    union {
        __half2 pairs[2];
        uint2 four;
    } up, rest;
    x.x *= scale.x, x.y *= scale.y, x.z *= scale.z, x.w *= scale.w;
    up.pairs[0] = __floats2half2_rn(x.x, x.y), up.pairs[1] = __floats2half2_rn(x.z, x.w);
    *reinterpret_cast<uint2*>(high) = up.four;
    if constexpr (planes == 1) return;
    rest.pairs[0] = __floats2half2_rn(x.x - __low2float(up.pairs[0]), x.y - __high2float(up.pairs[0]));
    rest.pairs[1] = __floats2half2_rn(x.z - __low2float(up.pairs[1]), x.w - __high2float(up.pairs[1]));
    *reinterpret_cast<uint2*>(low) = rest.four;
}
__device__ __forceinline__ float4 broadcast_float4(float x) { return make_float4(x, x, x, x); }

// Return the block's number in x and y, and the number of such blocks; the kernel uses z for other work.
__device__ __forceinline__ int flat_block() { return blockIdx.y * gridDim.x + blockIdx.x; }
__device__ __forceinline__ int flat_blocks() { return gridDim.y * gridDim.x; }

// Split rows of in [rows][length], length a multiple of 4, into planes [2][rows][pitch], in blocks of 256 threads. The
// stored exponent of a row is the one that removes the scale.
template <int planes>
__device__ __forceinline__ void split_row(const float* __restrict__ row, __half* high, __half* low, int* exponent,
                                          int length) {
    __shared__ unsigned most[8];
    __syncthreads();  // all threads have read the previous row
    unsigned magnitude = 0;
    for (int at = threadIdx.x * 4; at < length; at += 1024)
        magnitude = max(magnitude, largest(*reinterpret_cast<const float4*>(row + at)));
    magnitude = largest_of_warp(magnitude);
    if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = magnitude;
    __syncthreads();
    for (int warp = 0; warp < 8; ++warp) magnitude = max(magnitude, most[warp]);
    const int e = exponent_for(magnitude);
    if (threadIdx.x == 0) *exponent = -e;
    for (int at = threadIdx.x * 4; at < length; at += 1024)  // these loads hit L1
        split_four<planes>(*reinterpret_cast<const float4*>(row + at), broadcast_float4(power_of_two(e)), high + at,
                           low + at);
}

template <int planes = 2>
__device__ __forceinline__ void split_rows(const float* __restrict__ in, __half* to, int* exponents, int rows,
                                           int length, int pitch) {
    for (int row = flat_block(); row < rows; row += flat_blocks()) {
        __half* high = to + (size_t)row * pitch;
        split_row<planes>(in + (size_t)row * length, high, high + (size_t)rows * pitch, exponents + row, length);
    }
}

// 256 threads for up to 1024 columns of [rows][columns], columns a multiple of 4: each thread has four columns and
// every step-th row. Blocks along y divide the rows.
struct ColumnThread {
    int column, row, step;  // a thread without columns gets no row

    __device__ __forceinline__ ColumnThread(int rows, int columns) {
        const int first = blockIdx.x * 1024, quads = min(columns - first, 1024) / 4, lines = 256 / quads;
        const int line = (int)threadIdx.x / quads;
        column = first + (int)threadIdx.x % quads * 4, step = gridDim.y * lines;
        row = line < lines ? (int)blockIdx.y * lines + line : rows;
    }
};
// Find the largest magnitude of each column; `magnitudes` is zero at the start.
__device__ __forceinline__ void find_columns(const float* __restrict__ in, unsigned* magnitudes, int rows,
                                             int columns) {
    if (blockIdx.x * 1024 >= columns) return;
    __shared__ unsigned most[1024];
    for (int i = threadIdx.x; i < 1024; i += 256) most[i] = 0;
    __syncthreads();
    const ColumnThread thread_part(rows, columns);
    unsigned largest_seen[4] = {};
    for (int row = thread_part.row; row < rows; row += thread_part.step) {
        const float4 x = *reinterpret_cast<const float4*>(in + (size_t)row * columns + thread_part.column);
        largest_seen[0] = max(largest_seen[0], __float_as_uint(fabsf(x.x))),
        largest_seen[1] = max(largest_seen[1], __float_as_uint(fabsf(x.y)));
        largest_seen[2] = max(largest_seen[2], __float_as_uint(fabsf(x.z))),
        largest_seen[3] = max(largest_seen[3], __float_as_uint(fabsf(x.w)));
    }
    for (int i = 0; i < 4; ++i) atomicMax(most + thread_part.column % 1024 + i, largest_seen[i]);
    __syncthreads();
    const int first = blockIdx.x * 1024;
    for (int i = threadIdx.x; i < 1024 && first + i < columns; i += 256) atomicMax(magnitudes + first + i, most[i]);
}
// Write planes [planes][rows][pitch] and an exponent per column; one plane has the accuracy of TF32.
template <int planes = 2>
__device__ __forceinline__ void split_columns(const float* __restrict__ in, const unsigned* magnitudes, __half* to,
                                              int* exponents, int rows, int columns, int pitch) {
    if (blockIdx.x * 1024 >= columns) return;
    const ColumnThread thread_part(rows, columns);
    unsigned most[4];
    for (int i = 0; i < 4; ++i) most[i] = magnitudes[thread_part.column + i];
    float scale[4];
    for (int i = 0; i < 4; ++i) {
        const int e = exponent_for(most[i]);
        scale[i] = power_of_two(e);
        if (blockIdx.y == 0 && thread_part.row == 0) exponents[thread_part.column + i] = -e;
    }
    for (int row = thread_part.row; row < rows; row += 4 * thread_part.step) {  // four loads in flight
        float4 x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (const int at = row + i * thread_part.step; at < rows)
                x[i] = *reinterpret_cast<const float4*>(in + (size_t)at * columns + thread_part.column);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = row + i * thread_part.step;
            __half* high = to + (size_t)at * pitch + thread_part.column;
            if (at < rows)
                split_four<planes>(x[i], make_float4(scale[0], scale[1], scale[2], scale[3]), high,
                                   high + (size_t)rows * pitch);
        }
    }
}

// Find the largest magnitude of `count` floats, a multiple of 4, over all blocks of 256 threads; `magnitudes` is 0 at
// the start.
__device__ __forceinline__ void find_largest(const float* __restrict__ in, unsigned* magnitudes, long long count) {
    unsigned magnitude = 0;
    const long long step = flat_blocks() * 1024ll;
    for (long long at = (flat_block() * 256ll + threadIdx.x) * 4; at < count; at += step)
        magnitude = max(magnitude, largest(*reinterpret_cast<const float4*>(in + at)));
    magnitude = largest_of_warp(magnitude);
    if (threadIdx.x % 32 == 0 && magnitude > 0) atomicMax(magnitudes, magnitude);
}
// Split all floats with one exponent, that of the largest magnitude; the low plane follows the high plane.
template <int planes = 2>
__device__ __forceinline__ void split_all(const float* __restrict__ in, const unsigned* magnitudes, __half* to,
                                          int* exponent, long long count) {
    const int e = exponent_for(*magnitudes);
    if (flat_block() == 0 && threadIdx.x == 0) *exponent = -e;
    const long long step = flat_blocks() * 1024ll;
    for (long long at = (flat_block() * 256ll + threadIdx.x) * 4; at < count; at += step)
        split_four<planes>(*reinterpret_cast<const float4*>(in + at), broadcast_float4(power_of_two(e)), to + at,
                           to + count + at);
}

}  // namespace opbench
