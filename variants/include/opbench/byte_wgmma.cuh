// Products of 8-bit operands by wgmma, for the ring of ring.cuh. Both operands are stored by k, in rows of 128 bytes.
//
// When Hopper's tensor cores add products of 8-bit floats, they align the products and the previous sum to the largest
// of them and keep about 14 bits. So only about 13 bits of the float sums are significant. `drain_promoted` therefore
// starts sums from zero in each stage.
#pragma once
#include <opbench/bytes.cuh>
#include <opbench/ring.cuh>
#include <opbench/tma.cuh>

namespace opbench {

// clang-format off
#define OPBENCH_WHOLE_4(I) "+r"(d[I]), "+r"(d[I + 1]), "+r"(d[I + 2]), "+r"(d[I + 3])
#define OPBENCH_WHOLE_16(I) OPBENCH_WHOLE_4(I), OPBENCH_WHOLE_4(I + 4), OPBENCH_WHOLE_4(I + 8), OPBENCH_WHOLE_4(I + 12)
#define OPBENCH_WHOLE_32(I) OPBENCH_WHOLE_16(I), OPBENCH_WHOLE_16(I + 16)
#define OPBENCH_WHOLE_64(I) OPBENCH_WHOLE_32(I), OPBENCH_WHOLE_32(I + 32)
#define OPBENCH_WHOLE_128(I) OPBENCH_WHOLE_64(I), OPBENCH_WHOLE_64(I + 64)

// d = a * b, or d += a * b if `add` is not 0, for 64 x N x 32; a and b are descriptors.
#define OPBENCH_BYTES(TYPES, N, COUNT, A, B, ADD, SCALES, SUMS)                                                       \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k32." TYPES " {"  \
                 OPBENCH_NAMES_##COUNT "}, " A ", " B ", p" SCALES "; }"                                              \
                 : SUMS##_##COUNT(0) : "l"(a), "l"(b), "r"(add));
#define OPBENCH_FLOAT_BYTES(N, COUNT, A, B, ADD)                                                                      \
    if constexpr (count == COUNT && types == Bytes::e4m3)                                                             \
        OPBENCH_BYTES("f32.e4m3.e4m3", N, COUNT, A, B, ADD, ", 1, 1", OPBENCH_SUMS)                                   \
    if constexpr (count == COUNT && types == Bytes::e5m2)                                                             \
        OPBENCH_BYTES("f32.e5m2.e5m2", N, COUNT, A, B, ADD, ", 1, 1", OPBENCH_SUMS)                                   \
    if constexpr (count == COUNT && types == Bytes::e4m3_e5m2)                                                        \
        OPBENCH_BYTES("f32.e4m3.e5m2", N, COUNT, A, B, ADD, ", 1, 1", OPBENCH_SUMS)                                   \
    if constexpr (count == COUNT && types == Bytes::e5m2_e4m3)                                                        \
        OPBENCH_BYTES("f32.e5m2.e4m3", N, COUNT, A, B, ADD, ", 1, 1", OPBENCH_SUMS)
template <Bytes types, int count>
__device__ __forceinline__ void wgmma_bytes(float (&d)[count], unsigned long long a, unsigned long long b, int add) {
    static_assert(types != Bytes::s8 && (count == 64 || count == 128), "floats; 128 or 256 columns");
    OPBENCH_FLOAT_BYTES(128, 64, "%64", "%65", "%66")
    OPBENCH_FLOAT_BYTES(256, 128, "%128", "%129", "%130")
}
template <Bytes types, int count>
__device__ __forceinline__ void wgmma_bytes(int (&d)[count], unsigned long long a, unsigned long long b, int add) {
    static_assert(types == Bytes::s8 && (count == 64 || count == 128), "whole numbers; 128 or 256 columns");
    if constexpr (count == 64)
        OPBENCH_BYTES("s32.s8.s8", 128, 64, "%64", "%65", "%66", "", OPBENCH_WHOLE)
    if constexpr (count == 128)
        OPBENCH_BYTES("s32.s8.s8", 256, 128, "%128", "%129", "%130", "", OPBENCH_WHOLE)
}
// clang-format on

// sum[i] += a * b of one stage: `tiles` times 64 rows of a, the columns of b, 128 bytes of k.
template <Bytes types, class Sum, int tiles, int count>
__device__ __forceinline__ void multiply_bytes(Sum (&sum)[tiles][count], unsigned a, unsigned b, int add) {
    const unsigned long long rows = descriptor(a), columns = descriptor(b);
#pragma unroll
    for (int slice = 0; slice < 4; ++slice)
#pragma unroll
        for (int i = 0; i < tiles; ++i)
            wgmma_bytes<types>(sum[i], rows + i * (64 * 128 / 16) + slice * 2, columns + slice * 2, add || slice > 0);
}

// The producer thread: fill the stages of all tiles, each with 128 rows of a and `columns` columns of b by 128 bytes of
// k. Each block of a cluster loads its part of b for all blocks.
template <int columns, int blocks, class Ring, class TileScheduler>
__device__ __forceinline__ void fill_tiles(Ring& ring, const TileScheduler& scheduler, int steps,
                                           const TensorMap* map_a, const TensorMap* map_b) {
    scheduler.for_each_tile([&](TilePlace tile) {
        ring.fill(steps, [&](int step, unsigned a, unsigned full) {
            constexpr int share = columns / blocks;
            const int own = scheduler.rank * share;
            load(a, map_a, full, step * 128, tile.row);
            load_for_all<blocks>(a + (128 + own) * 128, map_b, full, step * 128, tile.column + own);
        });
    });
}

// Like Ring::drain, but promote(step) may read the sums of each stage: they are complete, and the stage is released.
// Meanwhile the products of the other warpgroup run.
template <int stages, int stage_bytes, int blocks, int readers, int copied, class Multiply, class Promote>
__device__ __forceinline__ void drain_promoted(Ring<stages, stage_bytes, blocks, readers, copied>& ring, int steps,
                                               const Multiply& multiply, const Promote& promote) {
    for (int step = 0; step < steps; ++step) {
        wait_for(ring.full + 8 * ring.stage, ring.phase);
        wgmma_fence();
        multiply(step, ring.memory + ring.stage * stage_bytes);
        wgmma_commit();
        wgmma_wait<0>();
        ring.release(ring.stage);
        ring.advance();
        promote(step);
    }
}

// The same with two sets of sums: one is promoted while the other one is computed. multiply and promote take the set, a
// Choice. After every `batch` steps, an even number, no set is being computed, because ptxas serialises wgmma whose
// sums are read in the next iteration of a loop. With a batch of one step, the second set is not used.
template <int batch, int stages, int stage_bytes, int blocks, int readers, int copied, class Multiply, class Promote>
__device__ __forceinline__ void drain_promoted_alternately(Ring<stages, stage_bytes, blocks, readers, copied>& ring,
                                                           int steps, const Multiply& multiply,
                                                           const Promote& promote) {
    const auto issue = [&](auto set, int step) {
        wait_for(ring.full + 8 * ring.stage, ring.phase);
        wgmma_fence();
        multiply(set, step, ring.memory + ring.stage * stage_bytes);
        wgmma_commit();
        const unsigned stage = ring.stage;
        ring.advance();
        return stage;
    };
    static_assert(batch == 1 || batch % 2 == 0, "the last step of each batch has the second set");
    int step = 0;
    for (; batch > 1 && step + batch <= steps; step += batch) {
        unsigned before = issue(Choice<false>(), step);
#pragma unroll
        for (int in_batch = 1; in_batch < batch; ++in_batch) {
            const unsigned now =
                in_batch % 2 ? issue(Choice<true>(), step + in_batch) : issue(Choice<false>(), step + in_batch);
            wgmma_wait<1>();
            ring.release(before);
            if (in_batch % 2)
                promote(Choice<false>(), step + in_batch - 1);
            else
                promote(Choice<true>(), step + in_batch - 1);
            before = now;
        }
        wgmma_wait<0>();
        ring.release(before);
        promote(Choice<true>(), step + batch - 1);
    }
    for (; step < steps; ++step) {
        const unsigned now = issue(Choice<false>(), step);
        wgmma_wait<0>();
        ring.release(now);
        promote(Choice<false>(), step);
    }
}

}  // namespace opbench
