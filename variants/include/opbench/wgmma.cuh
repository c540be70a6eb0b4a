// The matrix instructions of Hopper: a warpgroup (four warps) multiplies 64 rows of a by up to 256 columns of b, both
// in shared memory, and adds the product to sums in registers, asynchronously.
//
// Sums of thread t, with w = t / 32 % 4 and l = t % 32: d[4 j + i] is row 16 w + l / 4 + 8 (i / 2), column
// 8 j + 2 (l % 4) + i % 2. Between issue and wait, the kernel must touch neither the sums nor the operands.
#pragma once

#include <opbench/format.cuh>

namespace opbench {

template <Format>
struct Stored {
    typedef unsigned short T;
};  // in 16 bits
template <>
struct Stored<Format::tf32> {
    typedef float T;
};

// Return the descriptor of an operand in rows of 128 bytes with the 128-byte swizzle. By k: a row has the k of one m or
// n, and eight rows are `stride` bytes from the next eight. By m or n: a row has 64 m or n of one k; eight k are
// `stride` bytes from the next eight, and the next 64 m or n are `leading` bytes further. Descriptors count in units of
// 16 bytes: the next 32 bytes of a row are descriptor + 2. A tile may begin at any row, because the swizzle depends on
// the address. Rows of 64 bytes (`span`) are possible, too.
__device__ __forceinline__ unsigned long long descriptor(unsigned address, unsigned stride = 1024,
                                                         unsigned leading = 16, int span = 128) {
    return (unsigned long long)((address & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16 |
           (unsigned long long)(stride >> 4) << 32 | (span == 64 ? 2ull : 1ull) << 62;
}
// Call before the first instruction of a group if registers of the sums were accessed.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Wait until all groups but the last `pending` are complete. Never call this under a condition: ptxas would then wait
// after every instruction.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// clang-format off
#define OPBENCH_FIVE(T) "%" #T "0, %" #T "1, %" #T "2, %" #T "3, %" #T "4, "
#define OPBENCH_TEN(T) OPBENCH_FIVE(T) "%" #T "5, %" #T "6, %" #T "7, %" #T "8, %" #T "9, "
#define OPBENCH_NAMES_4 "%0, %1, %2, %3"
#define OPBENCH_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define OPBENCH_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define OPBENCH_NAMES_24 OPBENCH_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define OPBENCH_NAMES_30 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " OPBENCH_TEN(1) OPBENCH_TEN(2)
#define OPBENCH_NAMES_32 OPBENCH_NAMES_30 "%30, %31"
#define OPBENCH_NAMES_48 OPBENCH_NAMES_30 OPBENCH_TEN(3) "%40, %41, %42, %43, %44, %45, %46, %47"
#define OPBENCH_NAMES_60 OPBENCH_NAMES_30 OPBENCH_TEN(3) OPBENCH_TEN(4) OPBENCH_TEN(5)
#define OPBENCH_NAMES_64 OPBENCH_NAMES_60 "%60, %61, %62, %63"
#define OPBENCH_NAMES_72 OPBENCH_NAMES_60 OPBENCH_TEN(6) "%70, %71"
#define OPBENCH_NAMES_90 OPBENCH_NAMES_60 OPBENCH_TEN(6) OPBENCH_TEN(7) OPBENCH_TEN(8)
#define OPBENCH_NAMES_96 OPBENCH_NAMES_90 "%90, %91, %92, %93, %94, %95"
#define OPBENCH_NAMES_112 OPBENCH_NAMES_90 OPBENCH_TEN(9) OPBENCH_TEN(10) "%110, %111"
#define OPBENCH_NAMES_128 OPBENCH_NAMES_90 OPBENCH_TEN(9) OPBENCH_TEN(10) OPBENCH_TEN(11) \
    "%120, %121, %122, %123, %124, %125, %126, %127"
#define OPBENCH_SUMS_4(I) "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3])
#define OPBENCH_SUMS_8(I) OPBENCH_SUMS_4(I), OPBENCH_SUMS_4(I + 4)
#define OPBENCH_SUMS_16(I) OPBENCH_SUMS_8(I), OPBENCH_SUMS_8(I + 8)
#define OPBENCH_SUMS_24(I) OPBENCH_SUMS_16(I), OPBENCH_SUMS_8(I + 16)
#define OPBENCH_SUMS_32(I) OPBENCH_SUMS_16(I), OPBENCH_SUMS_16(I + 16)
#define OPBENCH_SUMS_48(I) OPBENCH_SUMS_32(I), OPBENCH_SUMS_16(I + 32)
#define OPBENCH_SUMS_64(I) OPBENCH_SUMS_32(I), OPBENCH_SUMS_32(I + 32)
#define OPBENCH_SUMS_72(I) OPBENCH_SUMS_64(I), OPBENCH_SUMS_8(I + 64)
#define OPBENCH_SUMS_96(I) OPBENCH_SUMS_64(I), OPBENCH_SUMS_32(I + 64)
#define OPBENCH_SUMS_112(I) OPBENCH_SUMS_64(I), OPBENCH_SUMS_48(I + 64)
#define OPBENCH_SUMS_128(I) OPBENCH_SUMS_64(I), OPBENCH_SUMS_64(I + 64)

// Compute d = a * b, or d += a * b if `add` is not 0, for 64 x N x 32 bytes of k; a and b are descriptors. With by_m
// and by_n, which only 16-bit operands allow, the operands are stored by m and by n.
template <Format operand, bool by_m = false, bool by_n = false, int count>
__device__ __forceinline__ void wgmma(float (&d)[count], unsigned long long a, unsigned long long b, int add) {
    static_assert(operand != Format::tf32 || !by_m && !by_n, "wgmma reads TF32 by k alone");
#define OPBENCH_16_BITS(TYPE, N, COUNT, A, B, ADD, BY_M, BY_N)                                                        \
    if constexpr (operand == Format::TYPE && count == COUNT)                                                          \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N                \
                     "k16.f32." #TYPE "." #TYPE " {" OPBENCH_NAMES_##COUNT "}, " A ", " B ", p, 1, 1, "               \
                     BY_M ", " BY_N "; }"                                                                             \
                     : OPBENCH_SUMS_##COUNT(0) : "l"(a), "l"(b), "r"(add), "n"((int)by_m), "n"((int)by_n));
#define OPBENCH_WGMMA(N, COUNT, A, B, ADD, BY_M, BY_N)                                                                \
    OPBENCH_16_BITS(bf16, N, COUNT, A, B, ADD, BY_M, BY_N)                                                            \
    OPBENCH_16_BITS(f16, N, COUNT, A, B, ADD, BY_M, BY_N)                                                             \
    if constexpr (operand == Format::tf32 && count == COUNT)                                                          \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N                \
                     "k8.f32.tf32.tf32 {" OPBENCH_NAMES_##COUNT "}, " A ", " B ", p, 1, 1; }"                         \
                     : OPBENCH_SUMS_##COUNT(0) : "l"(a), "l"(b), "r"(add));
    OPBENCH_WGMMA(8, 4, "%4", "%5", "%6", "%7", "%8")
    OPBENCH_WGMMA(16, 8, "%8", "%9", "%10", "%11", "%12")
    OPBENCH_WGMMA(32, 16, "%16", "%17", "%18", "%19", "%20")
    OPBENCH_WGMMA(48, 24, "%24", "%25", "%26", "%27", "%28")
    OPBENCH_WGMMA(64, 32, "%32", "%33", "%34", "%35", "%36")
    OPBENCH_WGMMA(96, 48, "%48", "%49", "%50", "%51", "%52")
    OPBENCH_WGMMA(128, 64, "%64", "%65", "%66", "%67", "%68")
    OPBENCH_WGMMA(144, 72, "%72", "%73", "%74", "%75", "%76")
    OPBENCH_WGMMA(192, 96, "%96", "%97", "%98", "%99", "%100")
    OPBENCH_WGMMA(224, 112, "%112", "%113", "%114", "%115", "%116")
    OPBENCH_WGMMA(256, 128, "%128", "%129", "%130", "%131", "%132")
}

// The same with 64 x 16 elements of a in registers, two 16-bit elements in each: a[i] is row 16 w + l / 4 + 8 (i % 2),
// columns 2 (l % 4) + 8 (i / 2) and the next one.
template <Format operand, bool by_n = false, int count>
__device__ __forceinline__ void wgmma(float (&d)[count], const unsigned (&a)[4], unsigned long long b, int add) {
    static_assert(operand != Format::tf32 && (count == 32 || count == 64), "16-bit numbers, 64 or 128 columns");
#define OPBENCH_REGISTERS(TYPE, N, COUNT, A, B, ADD, BY_N)                                                            \
    if constexpr (operand == Format::TYPE && count == COUNT)                                                          \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N                \
                     "k16.f32." #TYPE "." #TYPE " {" OPBENCH_NAMES_##COUNT "}, {" A "}, " B ", p, 1, 1, " BY_N "; }"  \
                     : OPBENCH_SUMS_##COUNT(0)                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"((int)by_n));
    OPBENCH_REGISTERS(bf16, 64, 32, "%32, %33, %34, %35", "%36", "%37", "%38")
    OPBENCH_REGISTERS(f16, 64, 32, "%32, %33, %34, %35", "%36", "%37", "%38")
    OPBENCH_REGISTERS(bf16, 128, 64, "%64, %65, %66, %67", "%68", "%69", "%70")
    OPBENCH_REGISTERS(f16, 128, 64, "%64, %65, %66, %67", "%68", "%69", "%70")
}
// clang-format on

// sum[i] += a * b of one stage: `tiles` times 64 rows of a, 128 (or 64) bytes of k, or only the first 32 * slices
// bytes; b is stored by k, or as 64 rows of k by n.
template <Format operand, bool by_n = false, int span = 128, int slices = span / 32, int tiles, int count>
__device__ __forceinline__ void multiply_stage(float (&sum)[tiles][count], unsigned a, unsigned b, int add) {
    static_assert(span == 128 || !by_n, "rows of k by n have 128 bytes");
    const unsigned long long rows = descriptor(a, 8 * span, 16, span);
    const unsigned long long columns = by_n ? descriptor(b, 1024, 64 * 128) : descriptor(b, 8 * span, 16, span);
#pragma unroll
    for (int slice = 0; slice < slices; ++slice)
#pragma unroll
        for (int i = 0; i < tiles; ++i)
            wgmma<operand, false, by_n>(sum[i], rows + i * (64 * span / 16) + slice * 2,
                                        columns + slice * (by_n ? 16 * 128 / 16 : 2), add || slice > 0);
}

}  // namespace opbench
