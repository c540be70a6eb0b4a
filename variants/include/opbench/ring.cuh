// The schedule of Hopper kernels: a ring of stages in shared memory, which one producer thread fills and two consumer
// warpgroups read; persistent blocks that process tiles in turn; clusters whose blocks multicast to each other.
#pragma once
#include <opbench/barrier.cuh>
#include <opbench/wgmma.cuh>

namespace opbench {

// A compile-time choice as a function argument. wgmma under a run-time condition would be serialised, so the condition
// selects between two versions of the whole loop.
template <bool chosen>
struct Choice {
    static constexpr bool value = chosen;
};

// Warpgroup 0 copies, 1 and 2 multiply; setmaxnreg moves registers from warpgroup 0 to the others.
constexpr int ring_threads = 384, consumers = 2, copier_registers = 40, consumer_registers = 232;

// The barrier `full` of a stage completes a phase when the stage's bytes have arrived, `empty` when all consumers of
// the cluster have read the stage. `readers` warpgroups of a block multiply. `copied` bytes of a stage are copied; the
// rest is padding to a multiple of 1024.
template <int stages, int stage_bytes, int blocks = 1, int readers = consumers, int copied = stage_bytes>
struct Ring {
    static constexpr int bytes = stages * stage_bytes, barrier_bytes = 16 * stages;
    unsigned memory, full, empty, stage = 0, phase = 0;

    __device__ __forceinline__ Ring(unsigned memory_, unsigned barriers)
        : memory(memory_), full(barriers), empty(barriers + 8 * stages) {}
    // Call in one thread, before the threads of all blocks of the cluster synchronise.
    __device__ __forceinline__ void init() const {
        for (int i = 0; i < stages; ++i) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, readers * blocks);
        }
        barrier_init_fence();
    }
    // Initialise the barriers, and synchronise all threads of the cluster.
    __device__ __forceinline__ void start() const {
        if (threadIdx.x == 0) init();
        sync_blocks<blocks>();
    }
    __device__ __forceinline__ void advance() {
        if (++stage == stages) stage = 0, phase ^= 1;
    }
    // Leave the next `steps` stages to another warpgroup.
    __device__ __forceinline__ void skip(int steps) {
        stage += steps;
        phase ^= stage / stages % 2;
        stage %= stages;
    }

    // The producer thread: copy(step, address of the stage, its barrier) issues copies of `bytes` in total. `bytes`
    // differs from `copied`, for example, for operands that an epilogue reads.
    template <class Copy>
    __device__ __forceinline__ void fill(int steps, const Copy& copy, int first = 0, int bytes = copied) {
        for (int step = first; step < steps; ++step, advance()) {
            wait_for(empty + 8 * stage, phase ^ 1);
            arrive_expect(full + 8 * stage, bytes);
            copy(step, memory + stage * stage_bytes, full + 8 * stage);
        }
    }
    // The producer thread of an overlapped launch. copy_independent() copies the part of a stage that no launch writes;
    // copy_dependent() copies the rest. Until the previous launches have ended, only copy_independent() copies, and
    // only to the first stages.
    template <class CopyIndependent, class CopyDependent>
    __device__ __forceinline__ void fill_overlapped(int steps, const CopyIndependent& copy_independent,
                                                    const CopyDependent& copy_dependent, bool is_first) {
        int filled = 0;
        if (is_first) {
            filled = min(steps, min(stages, 4));  // with more, the rest of the first stage would have to wait for them
            for (int step = 0; step < filled; ++step) {
                arrive_expect(full + 8 * step, copied);
                copy_independent(step, memory + step * stage_bytes, full + 8 * step);
            }
            wait_for_launches_before();
            let_next_launch_start();
            for (int step = 0; step < filled; ++step, advance())
                copy_dependent(step, memory + step * stage_bytes, full + 8 * step);
        }
        fill(
            steps,
            [&](int step, unsigned to, unsigned barrier) {
                copy_dependent(step, to, barrier);
                copy_independent(step, to, barrier);
            },
            filled);
    }
    // The same for all tiles of the block: copy_independent(tile, step, ...), copy_dependent(tile, step, ...).
    template <class TileScheduler, class CopyIndependent, class CopyDependent>
    __device__ __forceinline__ void fill_tiles(const TileScheduler& scheduler, int steps,
                                               const CopyIndependent& copy_independent,
                                               const CopyDependent& copy_dependent) {
        bool is_first = true;
        scheduler.for_each_tile([&](auto tile) {
            fill_overlapped(
                steps, [&](int step, unsigned to, unsigned barrier) { copy_independent(tile, step, to, barrier); },
                [&](int step, unsigned to, unsigned barrier) { copy_dependent(tile, step, to, barrier); }, is_first);
            is_first = false;
        });
    }

    // A consumer warpgroup: multiply(step, address of the stage) issues wgmma. One group stays in flight while the next
    // stage is awaited; then the previous stage is released, and overlapped() runs.
    template <class Multiply>
    __device__ __forceinline__ void drain(int steps, const Multiply& multiply) {
        drain(steps, multiply, [] {});
    }
    template <class Multiply, class Overlapped>
    __device__ __forceinline__ void drain(int steps, const Multiply& multiply, const Overlapped& overlapped) {
        unsigned previous_stage = 0;
        for (int step = 0; step < steps; ++step) {
            consume(step, multiply, previous_stage);
            overlapped();
        }
        wgmma_wait<0>();
        release(previous_stage);
    }
    // The same, but odd steps call another function, chosen at compile time.
    template <class First, class Second>
    __device__ __forceinline__ void drain_pairs(int steps, const First& first, const Second& second) {
        unsigned previous_stage = 0;
        for (int step = 0; step < steps; step += 2) {
            consume(step, first, previous_stage);
            consume(step + 1, second, previous_stage);
        }
        wgmma_wait<0>();
        release(previous_stage);
    }
    template <class Multiply>
    __device__ __forceinline__ void consume(int step, const Multiply& multiply, unsigned& previous_stage) {
        wait_for(full + 8 * stage, phase);
        wgmma_fence();
        multiply(step, memory + stage * stage_bytes);
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0) release(previous_stage);
        previous_stage = stage;
        advance();
    }
    // A consumer warpgroup that reads stages of its block with ordinary loads: read(step, address of the stage).
    template <class Read>
    __device__ __forceinline__ void visit(int steps, const Read& read) {
        for (int step = 0; step < steps; ++step, advance()) {
            wait_for(full + 8 * stage, phase);
            read(step, memory + stage * stage_bytes);
            named_barrier_sync(threadIdx.x / 128, 128);  // all four warps have read the stage
            release(stage);
        }
    }
    // Arrive at each block of the cluster, with one thread per warpgroup: wgmma is one instruction of all four warps.
    __device__ __forceinline__ void release(unsigned stage_index) const {
        const unsigned thread = threadIdx.x % 128;
        if (thread >= blocks) return;
        if constexpr (blocks > 1)
            arrive_remote(address_in(empty + 8 * stage_index, thread));
        else
            arrive(empty + 8 * stage_index);
    }
    // The former name.
    __device__ __forceinline__ void give_back(unsigned stage_index) const { release(stage_index); }
};

// The turns of two warpgroups, 1 and 2 of the block, that read the same ring (each stage has one reader). A turn begins
// when the other warpgroup has seen all of its stages arrive, because a wait by parity must never be two phases ahead.
struct PingPong {
    unsigned barriers, warpgroup, phase;

    __device__ __forceinline__ explicit PingPong(unsigned barriers_)
        : barriers(barriers_), warpgroup(threadIdx.x / 128 - 1), phase(warpgroup ^ 1) {}
    // Call in one thread, before Ring::init.
    __device__ __forceinline__ void init() const { barrier_init(barriers, 4), barrier_init(barriers + 8, 4); }
    // The first turn of warpgroup 1 does not wait.
    __device__ __forceinline__ void begin() {
        wait_for(barriers + 8 * warpgroup, phase);
        phase ^= 1;
    }
    __device__ __forceinline__ void end() const {
        if (threadIdx.x % 32 == 0) arrive(barriers + 8 * (warpgroup ^ 1));
    }
    // Call work(place) for every other tile of the block; it drains `steps` stages and ends the turn in the last one.
    template <class TileScheduler, class Ring, class Work>
    __device__ __forceinline__ void for_each_tile(const TileScheduler& scheduler, Ring& ring, int steps,
                                                  const Work& work) {
        unsigned tile_number = 0;
        scheduler.for_each_tile([&](auto tile) {
            if (tile_number++ % 2 != warpgroup) return ring.skip(steps);
            begin();
            work(tile);
        });
    }
};
typedef PingPong Turns;  // the former name

// total = a * b with float32 accuracy, from f16 planes (hi_lo_split.cuh). A stage has two planes of 128 rows of a, then
// two planes of up to 128 columns of b (by n: a multiple of 64). The warpgroup computes 64 rows from `first` on. The
// products of the high parts start from zero in each stage, and are added in float while the products with low parts
// run. Rows have `span` bytes.
template <bool by_n, int span = 128, class Ring, int count>
__device__ __forceinline__ void drain_planes(Ring& ring, int steps, int first, float (&total)[count]) {
    constexpr int plane = 128 * span, columns = 2 * count, b_plane = (by_n ? (columns + 63) / 64 * 64 : columns) * span;
    float big[1][count], small[1][count];
#pragma unroll
    for (int i = 0; i < count; ++i) total[i] = 0.0f;
    ring.drain(
        steps,
        [&](int step, unsigned stage) {
            const unsigned a = stage + first * span, b = stage + 2 * plane;
            multiply_stage<Format::f16, by_n, span>(big, a, b, 0);
            wgmma_commit();
            multiply_stage<Format::f16, by_n, span>(small, a + plane, b, step > 0);
            multiply_stage<Format::f16, by_n, span>(small, a, b + b_plane, 1);
        },
        [&] {
#pragma unroll
            for (int i = 0; i < count; ++i) total[i] += big[0][i];
        });
#pragma unroll
    for (int i = 0; i < count; ++i) total[i] += small[0][i];
}

// total = a * b for the 64 rows of warpgroup `group` and 128 columns. Both operands are stored by the depth, in tiles
// of 64 rows of the depth by 64 columns: two of a, then two of b. The tensor core truncates as it adds, so its sums are
// added in float every 8 stages. With `with_ones`, ones_total = a * the 8 columns of ones at `ones`.
template <Format operand, bool with_ones, class Ring>
__device__ __forceinline__ void drain_by_depth(Ring& ring, int steps, int group, unsigned ones, float (&total)[64],
                                               float (&ones_total)[4]) {
    constexpr int piece = 64 * 128, promoted = 8;
    float sum[64], ones_sum[4];
#pragma unroll
    for (int i = 0; i < 64; ++i) total[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) ones_total[i] = 0.0f;
    for (int done = 0; done < steps; done += promoted) {
        ring.drain(min(promoted, steps - done), [&](int step, unsigned stage) {
            const unsigned long long a = descriptor(stage + group * piece);
            const unsigned long long b = descriptor(stage + 2 * piece, 1024, piece);
#pragma unroll
            for (int i = 0; i < 4 * 128; i += 128)  // 16 rows per step
                wgmma<operand, true, true>(sum, a + i, b + i, step > 0 || i > 0);
            if constexpr (with_ones) {
#pragma unroll
                for (int i = 0; i < 4 * 128; i += 128)
                    wgmma<operand, true>(ones_sum, a + i, descriptor(ones), step > 0 || i > 0);
            }
        });
#pragma unroll
        for (int i = 0; i < 64; ++i) total[i] += sum[i];
        if constexpr (with_ones) {
#pragma unroll
            for (int i = 0; i < 4; ++i) ones_total[i] += ones_sum[i];
        }
    }
}

// Tiles of bm x bn of a result, which persistent blocks process in turn. Blocks of a cluster have neighbouring rows.
// The columns of `group` rows of tiles are processed one after the other, so that concurrent blocks read the same parts
// of a and b from L2.
struct TilePlace {
    int row, column;  // of its first element
};
template <int bm, int bn, int group, int blocks = 1>
struct Tiles {
    int rows, columns, rank, first, step;  // rows, columns: tiles of clusters

    __device__ __forceinline__ Tiles(int m, int n)
        : rows((m + bm * blocks - 1) / (bm * blocks)), columns((n + bn - 1) / bn),
          rank(blocks > 1 ? (int)cluster_rank() : 0), first(blockIdx.x / blocks), step(gridDim.x / blocks) {}
    __device__ __forceinline__ int count() const { return rows * columns; }
    __device__ __forceinline__ TilePlace operator[](int index) const {
        const int span = group * columns, strip = index / span, within = index - strip * span;
        const int height = min(group, rows - strip * group);
        return {((strip * group + within % height) * blocks + rank) * bm, within / height * bn};
    }
    // Call work(place) for each tile of this block.
    template <class Work>
    __device__ __forceinline__ void for_each_tile(const Work& work) const {
        for (int index = first; index < count(); index += step) work((*this)[index]);
    }
};

}  // namespace opbench
