// Operands that are converted once and multiplied often: one policy per precision, like those of products.cuh.
#pragma once

#include <opbench/products.cuh>

namespace opbench {

// The operands of a product of depth 16. `Right`: 8 channels, in the layout of shared memory. `Left`: 16 pixels,
// computed from a thread's four elements of two windows.
template <Format>
struct Operands;

template <>
struct Operands<Format::bf16> {
    struct __align__(8) Right { unsigned x[2]; };
    struct Left { unsigned x[4]; };
    static __device__ __forceinline__ unsigned pack(__nv_bfloat16 x, __nv_bfloat16 y) {
        const __nv_bfloat162 pair(x, y);
        return *reinterpret_cast<const unsigned*>(&pair);
    }
    static __device__ __forceinline__ Right right(const __nv_bfloat16 (&x)[4]) {
        return {{pack(x[0], x[1]), pack(x[2], x[3])}};
    }
    static __device__ __forceinline__ Left left(const __nv_bfloat16 (&x)[2][4]) {
        return {{pack(x[0][0], x[0][1]), pack(x[1][0], x[1][1]), pack(x[0][2], x[0][3]), pack(x[1][2], x[1][3])}};
    }
    static __device__ __forceinline__ void multiply(float (&sum)[4], const Left& a, const Right& b) {
        mma_bf16(sum, a.x, b.x[0], b.x[1]);
    }
};

// Both parts are rounded to tf32, because short sums have a small tolerance.
template <>
struct Operands<Format::tf32x3> {
    struct __align__(16) Right { unsigned big[4], small[4]; };
    struct Left { unsigned big[2][4], small[2][4]; };
    static __device__ __forceinline__ Right right(const float (&x)[4]) {
        Right b;
        Product<Format::tf32x3>::split(reinterpret_cast<const unsigned (&)[4]>(x), b.big, b.small);
        return b;
    }
    static __device__ __forceinline__ Left left(const float (&x)[2][4]) {
        Left a;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float fragment[4] = {x[0][half * 2], x[1][half * 2], x[0][half * 2 + 1], x[1][half * 2 + 1]};
            Product<Format::tf32x3>::split(reinterpret_cast<const unsigned (&)[4]>(fragment), a.big[half],
                                           a.small[half]);
        }
        return a;
    }
    static __device__ __forceinline__ void multiply(float (&sum)[4], const Left& a, const Right& b) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            mma_tf32(sum, a.small[half], b.big[half * 2], b.big[half * 2 + 1]);
            mma_tf32(sum, a.big[half], b.small[half * 2], b.small[half * 2 + 1]);
            mma_tf32(sum, a.big[half], b.big[half * 2], b.big[half * 2 + 1]);
        }
    }
};

template <>
struct Operands<Format::tf32_corrected> {
    // rest: the bits that tf32 cuts off; whole and rest are bf16
    struct __align__(16) Right { unsigned x[4], whole[2], rest[2]; };
    struct Left { unsigned x[2][4], whole[4], rest[4]; };
    static __device__ __forceinline__ Right right(const float (&x)[4]) {
        Right b;
#pragma unroll
        for (int e = 0; e < 4; ++e) b.x[e] = __float_as_uint(x[e]);
#pragma unroll
        for (int half = 0; half < 2; ++half)
            Product<Format::tf32_corrected>::split(b.x[half * 2], b.x[half * 2 + 1], b.whole[half], b.rest[half]);
        return b;
    }
    static __device__ __forceinline__ Left left(const float (&x)[2][4]) {
        Left a;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            unsigned &first = a.x[e / 2][e % 2], &second = a.x[e / 2][e % 2 + 2];
            first = __float_as_uint(x[e % 2][e / 2 * 2]), second = __float_as_uint(x[e % 2][e / 2 * 2 + 1]);
            Product<Format::tf32_corrected>::split(first, second, a.whole[e], a.rest[e]);
        }
        return a;
    }
    static __device__ __forceinline__ void multiply(float (&sum)[4], const Left& a, const Right& b) {
        mma_bf16(sum, a.rest, b.whole[0], b.whole[1]);
        mma_bf16(sum, a.whole, b.rest[0], b.rest[1]);
        mma_tf32(sum, a.x[0], b.x[0], b.x[1]);
        mma_tf32(sum, a.x[1], b.x[2], b.x[3]);
    }
};

}  // namespace opbench
