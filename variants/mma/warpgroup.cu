// /// opbench
// compute_capability = "9.0a"
// mechanism = ["unrolled", "tensor_core"]
// tune = { UNROLL = [16, 8, 4] }
//
// [[launch]]
// kernel = "mma_warpgroup"
// grid   = ["tiles"]
// block  = [128]
// shared = "40960"
//
// [variant.wgmma_shared_bf16]
// title     = "wgmma on bf16 operands, both in shared memory"
// builds_on = "shared_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// define    = { FROM_SHARED = "1" }
//
// [variant.wgmma_shared_f16]
// title     = "wgmma on f16 operands, both in shared memory"
// builds_on = "shared_f16"
// product   = "f16"
// supports  = { dtype = ["f16"] }
// define    = { FROM_SHARED = "1" }
//
// [variant.wgmma_shared_tf32]
// title     = "wgmma on TF32 operands, both in shared memory"
// builds_on = "shared_tf32"
// product   = "tf32"
// supports  = { dtype = ["f32"] }
// define    = { FROM_SHARED = "1" }
//
// [variant.wgmma_shared_s8]
// title     = "wgmma on 8-bit integers, both operands in shared memory"
// builds_on = "shared_s8"
// product   = "s8"
// supports  = { operands = ["i8"], dtype = ["i32"] }
// define    = { FROM_SHARED = "1" }
//
// [variant.wgmma_registers_bf16]
// title     = "wgmma on bf16 operands, a in registers and b in shared memory"
// builds_on = "registers_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// define    = { FROM_SHARED = "0" }
//
// [variant.wgmma_registers_f16]
// title     = "wgmma on f16 operands, a in registers and b in shared memory"
// builds_on = "registers_f16"
// product   = "f16"
// supports  = { dtype = ["f16"] }
// define    = { FROM_SHARED = "0" }
//
// [variant.wgmma_registers_tf32]
// title     = "wgmma on TF32 operands, a in registers and b in shared memory"
// builds_on = "registers_tf32"
// product   = "tf32"
// supports  = { dtype = ["f32"] }
// define    = { FROM_SHARED = "0" }
//
// [variant.wgmma_registers_s8]
// title     = "wgmma on 8-bit integers, a in registers and b in shared memory"
// builds_on = "registers_s8"
// product   = "s8"
// supports  = { operands = ["i8"], dtype = ["i32"] }
// define    = { FROM_SHARED = "0" }
// ///
//
// This kernel measures the rate of Hopper's tensor cores. A warpgroup computes 64 x 256 outputs with the largest wgmma
// instruction, UNROLL rounds per commit group. Two blocks share a multiprocessor, so that one issues while the other
// waits for its group. An instruction takes 128 clocks and reads at most 10 KB of shared memory, which can deliver 16
// KB in that time. Limit: the tensor cores at the clock that power allows.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <opbench/byte_wgmma.cuh>
#include <opbench/epilogue.cuh>
#include <opbench/tile.cuh>
#include <opbench/wgmma.cuh>
using namespace opbench;

enum class Factors { bf16, f16, tf32, s8 };  // the names that the header uses
constexpr Factors factors = Factors::PRODUCT;

template <Factors>
struct Tensors {
    typedef float T, Sum, Out;
    static constexpr Format format = Format::tf32;
};
template <>
struct Tensors<Factors::bf16> {
    typedef __nv_bfloat16 T, Out;
    typedef float Sum;
    static constexpr Format format = Format::bf16;
};
template <>
struct Tensors<Factors::f16> {
    typedef __half T, Out;
    typedef float Sum;
    static constexpr Format format = Format::f16;
};
template <>
struct Tensors<Factors::s8> {
    typedef signed char T;
    typedef int Sum, Out;
    static constexpr Bytes format = Bytes::s8;
};
typedef Tensors<factors>::T T;
typedef Tensors<factors>::Sum Sum;
typedef Tensors<factors>::Out Out;

constexpr int words = 32, slices = 4;  // 32-bit words of a row; wgmma instructions along the depth

template <int rounds>
struct UnrollCount {
    static constexpr int value = rounds;
};

// Return the nearest TF32 of a float, by one addition; narrower operands are not changed.
__device__ __forceinline__ unsigned rounded(unsigned word) { return factors == Factors::tf32 ? word + 0x1000u : word; }

// Compute d = a * b, or d += a * b if `add` is not 0, on 64 x 256 x 32 bytes, with both operands in shared memory.
template <class Sum>
__device__ __forceinline__ void multiply(Sum (&d)[128], unsigned long long a, unsigned long long b, int add) {
    if constexpr (factors == Factors::s8)
        wgmma_bytes<Tensors<factors>::format>(d, a, b, add);
    else
        wgmma<Tensors<factors>::format>(d, a, b, add);
}

// The same with a in registers, in the layout of mma.sync.
template <class Sum>
__device__ __forceinline__ void multiply(Sum (&d)[128], const unsigned (&a)[4], unsigned long long b, int add) {
#define MULTIPLY(SHAPE_AND_TYPES, SUMS, REST)                                                                   \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %133, 0; wgmma.mma_async.sync.aligned.m64n256" SHAPE_AND_TYPES \
                 " {" OPBENCH_NAMES_128 "}, {%128, %129, %130, %131}, %132, p" REST "; }"                       \
                 : SUMS(0)                                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
    if constexpr (factors == Factors::bf16) MULTIPLY("k16.f32.bf16.bf16", OPBENCH_SUMS_128, ", 1, 1, 0");
    if constexpr (factors == Factors::f16) MULTIPLY("k16.f32.f16.f16", OPBENCH_SUMS_128, ", 1, 1, 0");
    if constexpr (factors == Factors::tf32) MULTIPLY("k8.f32.tf32.tf32", OPBENCH_SUMS_128, ", 1, 1");
    if constexpr (factors == Factors::s8) MULTIPLY("k32.s32.s8.s8", OPBENCH_WHOLE_128, "");
}

template <class Out, class Sum>
__device__ __forceinline__ void store_sums(Out* to, Sum x, Sum y) {
    if constexpr (factors == Factors::s8)
        *reinterpret_cast<int2*>(to) = make_int2(x, y);
    else
        store_pair(to, x / 1024, y / 1024);
}

// a [tiles][64][depth], b [tiles][256][depth], out [tiles][64][256]
extern "C" __global__ void __launch_bounds__(128)
    mma_warpgroup(const T* __restrict__ a, const T* __restrict__ b, Out* __restrict__ out, int tiles, int rounds) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const unsigned* rows = reinterpret_cast<const unsigned*>(a) + (size_t)blockIdx.x * 64 * words;
    const unsigned* columns = reinterpret_cast<const unsigned*>(b) + (size_t)blockIdx.x * 256 * words;
    for (int i = threadIdx.x; i < (64 + 256) * words; i += 128) {
        const int row = i / words, word = i % words;
        *reinterpret_cast<unsigned*>(shared + swizzled_offset(row, word / 4) + word % 4 * 4) =
            rounded(row < 64 ? rows[i] : columns[i - 64 * words]);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const unsigned memory = (unsigned)__cvta_generic_to_shared(shared);
    const unsigned long long left = descriptor(memory), right = descriptor(memory + 64 * row_bytes);
    unsigned a_fragments[slices][4];
#pragma unroll
    for (int slice = 0; slice < slices; ++slice)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            a_fragments[slice][e] = rounded(rows[(warp * 16 + g + e % 2 * 8) * words + slice * 8 + t + e / 2 * 4]);
    Sum sum[128] = {};
    const auto issue_rounds = [&](auto unroll) {
        wgmma_fence();
#pragma unroll
        for (int u = 0; u < decltype(unroll)::value; ++u)
#pragma unroll
            for (int slice = 0; slice < slices; ++slice) {
                if constexpr (FROM_SHARED)
                    multiply(sum, left + slice * 2, right + slice * 2, 1);
                else
                    multiply(sum, a_fragments[slice], right + slice * 2, 1);
            }
        wgmma_commit();
        wgmma_wait<0>();
    };
    int round = 0;
#pragma unroll 1
    for (; round + UNROLL <= rounds; round += UNROLL) issue_rounds(UnrollCount<UNROLL>());
#pragma unroll 1
    for (; round < rounds; ++round) issue_rounds(UnrollCount<1>());
    Out* to = out + (size_t)blockIdx.x * 64 * 256;
#pragma unroll
    for (int j = 0; j < 32; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            store_sums(to + (warp * 16 + g + half * 8) * 256 + j * 8 + t * 2, sum[j * 4 + half * 2],
                       sum[j * 4 + half * 2 + 1]);
}
