// Products of 8-bit operands by mma.sync: 16 x 8 x 32, for the main loop of stages.cuh. Fragments have the register
// layout of 16-bit operands, with two neighbouring elements along k instead of one.
#pragma once
#include <opbench/bytes.cuh>
#include <opbench/tile.cuh>

namespace opbench {

#define OPBENCH_MMA(TYPES, TAKES)                                                     \
    asm volatile("mma.sync.aligned.m16n8k32.row.col." TYPES                           \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n" \
                 : TAKES(sum[0]), TAKES(sum[1]), TAKES(sum[2]), TAKES(sum[3])         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

// sum += a * b
template <Bytes types>
__device__ __forceinline__ void mma_bytes(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    if constexpr (types == Bytes::e4m3) OPBENCH_MMA("f32.e4m3.e4m3.f32", "+f");
    if constexpr (types == Bytes::e5m2) OPBENCH_MMA("f32.e5m2.e5m2.f32", "+f");
    if constexpr (types == Bytes::e4m3_e5m2) OPBENCH_MMA("f32.e4m3.e5m2.f32", "+f");
    if constexpr (types == Bytes::e5m2_e4m3) OPBENCH_MMA("f32.e5m2.e4m3.f32", "+f");
}
template <Bytes types>
__device__ __forceinline__ void mma_bytes(int (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    static_assert(types == Bytes::s8, "sums of whole numbers are of whole numbers");
    OPBENCH_MMA("s32.s8.s8.s32", "+r");
}
#undef OPBENCH_MMA

// The policy of a product (see products.cuh), with sums of type `Sum`. Sums over 128 elements of k are promoted on
// request.
template <Bytes types, class Sum, int promoted_ = 0>
struct ByteProduct {
    typedef unsigned char T;
    static constexpr bool rewrites = false;
    static constexpr int promoted = promoted_, slices = 1;

    template <int tm, int tn>
    static __device__ __forceinline__ void multiply(unsigned (&a)[1][tm][4], unsigned (&b)[1][tn / 2][4],
                                                    Sum (&sum)[tm][tn][4]) {
#pragma unroll
        for (int mi = 0; mi < tm; ++mi)
#pragma unroll
            for (int ni = 0; ni < tn; ++ni)
                mma_bytes<types>(sum[mi][ni], a[0][mi], b[0][ni / 2][ni % 2 * 2], b[0][ni / 2][ni % 2 * 2 + 1]);
    }
};

}  // namespace opbench
