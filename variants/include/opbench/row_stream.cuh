// Stream the rows of one matrix and multiply them by few rows of another, on CUDA cores: 16 bytes per load, bf16 or
// float.
#pragma once

#include <opbench/activations.cuh>
#include <opbench/vectors.cuh>

namespace opbench {

// Load 16 bytes of a row of length k from element i on, with zeros after its end. `aligned`: k is a multiple of whole
// chunks, so the 16 bytes are all inside or all outside, and aligned.
template <class T>
__device__ __forceinline__ uint4 load16(const T* row, int i, int k, bool aligned) {
    constexpr bool halves = sizeof(T) == 2;
    if (aligned) return i < k ? *reinterpret_cast<const uint4*>(row + i) : make_uint4(0u, 0u, 0u, 0u);
    const auto* p = reinterpret_cast<const typename Raw<sizeof(T)>::type*>(row);
    unsigned word[4] = {};
#pragma unroll
    for (int j = 0; j < 16 / (int)sizeof(T); ++j)
        if (i + j < k) word[halves ? j / 2 : j] |= (unsigned)p[i + j] << (halves ? j % 2 * 16 : 0);
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// Convert 16 bytes to floats: eight bf16 or four floats.
template <int vec>
__device__ __forceinline__ void unpack(uint4 raw, float (&value)[vec]) {
    const unsigned word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        if constexpr (vec == 8) {
            value[2 * j] = __uint_as_float(word[j] << 16);  // a bf16 is the upper half of a float
            value[2 * j + 1] = __uint_as_float(word[j] & 0xffff0000u);
        } else {
            value[j] = __uint_as_float(word[j]);
        }
    }
}

// sum[i * rows + r] += x[row0 + i] . w[r] over 16 bytes from element i0 on; rows of x beyond m repeat the last row.
template <int rows, int sums, class T>
__device__ __forceinline__ void multiply_rows(float (&sum)[sums], const uint4 (&w)[rows], const T* x, int row0, int i0,
                                              int m, int k, bool aligned) {
    constexpr int vec = 16 / sizeof(T);
    float wide[rows][vec];
#pragma unroll
    for (int r = 0; r < rows; ++r) unpack(w[r], wide[r]);
#pragma unroll
    for (int i = 0; i < sums / rows; ++i) {
        float part[vec];
        unpack(load16(x + (size_t)min(row0 + i, m - 1) * k, i0, k, aligned), part);
#pragma unroll
        for (int r = 0; r < rows; ++r)
#pragma unroll
            for (int j = 0; j < vec; ++j) sum[i * rows + r] += part[j] * wide[r][j];
    }
}

// Add `sums` values over the lanes. At each step, a lane sends half of its values to its partner and adds the values
// that it receives to the other half, so 32 values take 31 shuffles, not 160. At the end, value lane * sums / 32 (+ 1,
// ...) is in sum[0] (...).
template <int sums>
__device__ __forceinline__ void add_lanes(float (&sum)[sums], int lane) {
    int count = sums;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        if (count > 1) {
            count /= 2;
            const bool upper = lane & offset;
#pragma unroll
            for (int j = 0; j < count; ++j) {
                const float sent = upper ? sum[j] : sum[j + count];
                const float retained = upper ? sum[j + count] : sum[j];
                sum[j] = retained + __shfl_xor_sync(0xffffffffu, sent, offset);
            }
        } else {
            sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], offset);
        }
    }
}

// Compute out[row][col] = sum + bias[col], then the activation.
template <bool with_bias, int activation_id, class T>
__device__ __forceinline__ void store_biased(float sum, const T* __restrict__ bias, T* __restrict__ out, int row,
                                             int col, int m, int n) {
    if (row >= m || col >= n) return;
    if constexpr (with_bias) sum += (float)bias[col];
    out[(size_t)row * n + col] = (T)apply_activation<activation_id>(sum);
}

}  // namespace opbench
