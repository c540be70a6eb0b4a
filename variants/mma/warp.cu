// /// opbench
// compute_capability = "8.0"
// mechanism = ["unrolled", "tensor_core"]
// tune = { UNROLL = [4, 1] }
//
// [[launch]]
// kernel = "mma_warp"
// grid   = ["tiles"]
// block  = [256]
// shared = "40960 if FROM_SHARED else 0"
//
// [variant.registers_bf16]
// title   = "mma.sync on bf16 fragments that stay in registers"
// product = "bf16"
// supports = { dtype = ["bf16"] }
// define  = { FROM_SHARED = "0" }
//
// [variant.registers_f16]
// title   = "mma.sync on f16 fragments that stay in registers"
// product = "f16"
// supports = { dtype = ["f16"] }
// define  = { FROM_SHARED = "0" }
//
// [variant.registers_tf32]
// title   = "mma.sync on TF32 fragments that stay in registers"
// product = "tf32"
// supports = { dtype = ["f32"] }
// define  = { FROM_SHARED = "0" }
//
// [variant.registers_s8]
// title   = "mma.sync on 8-bit integer fragments that stay in registers"
// product = "s8"
// supports = { operands = ["i8"], dtype = ["i32"] }
// define  = { FROM_SHARED = "0" }
//
// [variant.shared_bf16]
// title   = "mma.sync on bf16 fragments that ldmatrix loads from shared memory in every round"
// product = "bf16"
// supports = { dtype = ["bf16"] }
// define  = { FROM_SHARED = "1" }
//
// [variant.shared_f16]
// title   = "mma.sync on f16 fragments that ldmatrix loads from shared memory in every round"
// product = "f16"
// supports = { dtype = ["f16"] }
// define  = { FROM_SHARED = "1" }
//
// [variant.shared_tf32]
// title   = "mma.sync on TF32 fragments that ldmatrix loads from shared memory in every round"
// product = "tf32"
// supports = { dtype = ["f32"] }
// define  = { FROM_SHARED = "1" }
//
// [variant.shared_s8]
// title   = "mma.sync on 8-bit integer fragments that ldmatrix loads from shared memory in every round"
// product = "s8"
// supports = { operands = ["i8"], dtype = ["i32"] }
// define  = { FROM_SHARED = "1" }
// ///
//
// This kernel measures the rate of mma.sync. Eight warps compute 32 x 64 outputs each, so a scheduler has two warps
// with sixteen independent sums each. With fragments in registers, only mma instructions are issued. With fragments
// from shared memory, a warp needs 6 ldmatrix for 16 mma instructions, as in a matrix product. Limit: the issue rate of
// mma.sync, which is the full rate of the tensor cores on Ampere and Ada, but about 62 % of it on Hopper (only the
// wgmma variants reach all of it).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <opbench/byte_mma.cuh>
#include <opbench/epilogue.cuh>
#include <opbench/mma.cuh>
#include <opbench/tile.cuh>
using namespace opbench;

enum class Factors { bf16, f16, tf32, s8 };  // the names that the header uses
constexpr Factors factors = Factors::PRODUCT;

template <Factors>
struct Tensors {
    typedef float T, Sum, Out;
};
template <>
struct Tensors<Factors::bf16> {
    typedef __nv_bfloat16 T, Out;
    typedef float Sum;
};
template <>
struct Tensors<Factors::f16> {
    typedef __half T, Out;
    typedef float Sum;
};
template <>
struct Tensors<Factors::s8> {
    typedef signed char T;
    typedef int Sum, Out;
};
typedef Tensors<factors>::T T;
typedef Tensors<factors>::Sum Sum;
typedef Tensors<factors>::Out Out;

// 32-bit words of a row; mma instructions along the depth
constexpr int words = 32, slices = 4, warp_m = 32, warp_n = 64;

// Return the nearest TF32 of a float, by one addition; narrower operands are not changed.
__device__ __forceinline__ unsigned rounded(unsigned word) { return factors == Factors::tf32 ? word + 0x1000u : word; }

template <class Sum>
__device__ __forceinline__ void multiply(Sum (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    if constexpr (factors == Factors::bf16) mma_bf16(sum, a, b0, b1);
    if constexpr (factors == Factors::f16) mma_f16(sum, a, b0, b1);
    if constexpr (factors == Factors::tf32) mma_tf32(sum, a, b0, b1);
    if constexpr (factors == Factors::s8) mma_bytes<Bytes::s8>(sum, a, b0, b1);
}

template <class Out, class Sum>
__device__ __forceinline__ void store_sums(Out* to, Sum x, Sum y) {
    if constexpr (factors == Factors::s8)
        *reinterpret_cast<int2*>(to) = make_int2(x, y);
    else
        store_pair(to, x / 1024, y / 1024);
}

struct Fragments {
    unsigned a[warp_m / 16][4], b[warp_n / 16][4];  // b: words t and t + 4 of row g, then of row g + 8
};

__device__ __forceinline__ void multiply_slice(Sum (&sum)[warp_m / 16][warp_n / 8][4], const Fragments& from) {
#pragma unroll
    for (int mi = 0; mi < warp_m / 16; ++mi)
#pragma unroll
        for (int ni = 0; ni < warp_n / 8; ++ni)
            multiply(sum[mi][ni], from.a[mi], from.b[ni / 2][ni % 2 * 2], from.b[ni / 2][ni % 2 * 2 + 1]);
}

// a [tiles][64][depth], b [tiles][256][depth], out [tiles][64][256]
extern "C" __global__ void __launch_bounds__(256)
    mma_warp(const T* __restrict__ a, const T* __restrict__ b, Out* __restrict__ out, int tiles, int rounds) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int m0 = warp / 4 * warp_m, n0 = warp % 4 * warp_n;
    const unsigned* rows = reinterpret_cast<const unsigned*>(a) + (size_t)blockIdx.x * 64 * words;
    const unsigned* columns = reinterpret_cast<const unsigned*>(b) + (size_t)blockIdx.x * 256 * words;
    Sum sum[warp_m / 16][warp_n / 8][4] = {};
#if FROM_SHARED
    extern __shared__ __align__(128) unsigned char shared[];
    for (int i = threadIdx.x; i < (64 + 256) * words; i += 256) {
        const int row = i / words, word = i % words;
        *reinterpret_cast<unsigned*>(shared + swizzled_offset(row, word / 4) + word % 4 * 4) =
            rounded(row < 64 ? rows[i] : columns[i - 64 * words]);
    }
    __syncthreads();
    // Lane l provides the address of row l % 8 of matrix l / 8. Of a: rows 0-7, rows 8-15, then the next 16 bytes of
    // both. Of b: rows 0-7 with both halves of a slice, then rows 8-15.
    const unsigned memory = (unsigned)__cvta_generic_to_shared(shared);
    const int a_row = m0 + lane % 16, b_row = 64 + n0 + lane % 8 + lane / 16 * 8;
    const auto round_of = [&] {
#pragma unroll
        for (int slice = 0; slice < slices; ++slice) {
            Fragments from;
#pragma unroll
            for (int mi = 0; mi < warp_m / 16; ++mi)
                load_matrices(from.a[mi], memory + swizzled_offset(a_row + mi * 16, slice * 2 + lane / 16));
#pragma unroll
            for (int ni = 0; ni < warp_n / 16; ++ni)
                load_matrices(from.b[ni], memory + swizzled_offset(b_row + ni * 16, slice * 2 + lane / 8 % 2));
            multiply_slice(sum, from);
        }
    };
#else
    Fragments from[slices];
#pragma unroll
    for (int slice = 0; slice < slices; ++slice) {
#pragma unroll
        for (int mi = 0; mi < warp_m / 16; ++mi)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                from[slice].a[mi][e] =
                    rounded(rows[(m0 + mi * 16 + g + e % 2 * 8) * words + slice * 8 + t + e / 2 * 4]);
#pragma unroll
        for (int ni = 0; ni < warp_n / 16; ++ni)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                from[slice].b[ni][e] =
                    rounded(columns[(n0 + ni * 16 + g + e / 2 * 8) * words + slice * 8 + t + e % 2 * 4]);
    }
    const auto round_of = [&] {
#pragma unroll
        for (int slice = 0; slice < slices; ++slice) multiply_slice(sum, from[slice]);
    };
#endif
    int round = 0;
#pragma unroll 1
    for (; round + UNROLL <= rounds; round += UNROLL) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) round_of();
    }
#pragma unroll 1
    for (; round < rounds; ++round) round_of();
    Out* to = out + (size_t)blockIdx.x * 64 * 256;
#pragma unroll
    for (int mi = 0; mi < warp_m / 16; ++mi)
#pragma unroll
        for (int ni = 0; ni < warp_n / 8; ++ni)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                store_sums(to + (m0 + mi * 16 + g + half * 8) * 256 + n0 + ni * 8 + t * 2, sum[mi][ni][half * 2],
                           sum[mi][ni][half * 2 + 1]);
}
