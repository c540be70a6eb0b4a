// The schedule of Hopper's kernels: a ring of stages in shared memory, which one thread fills by copies and two
// warpgroups multiply from; blocks that stay and walk over tiles; clusters whose blocks fetch for each other.
#pragma once
#include <opbench/barrier.cuh>
#include <opbench/wgmma.cuh>

namespace opbench {

// A choice that the compiler knows, as an argument: wgmma under a condition that only the block knows would be
// serialised, so that what is multiplied is chosen around the whole loop.
template <bool chosen>
struct Choice {
    static constexpr bool value = chosen;
};

// Warpgroup 0 copies, 1 and 2 multiply; between them they trade the registers that the launch gave to all alike.
constexpr int ring_threads = 384, consumers = 2, copier_registers = 40, consumer_registers = 232;

// `full` of a stage ends a phase when its bytes have landed, `empty` when every consumer of the cluster has read it.
// `readers` warpgroups of a block multiply; `copied` of a stage's bytes arrive, the rest fills up to a multiple of
// 1024.
template <int stages, int stage_bytes, int blocks = 1, int readers = consumers, int copied = stage_bytes>
struct Ring {
    static constexpr int bytes = stages * stage_bytes, barrier_bytes = 16 * stages;
    unsigned memory, full, empty, stage = 0, phase = 0;

    __device__ __forceinline__ Ring(unsigned memory_, unsigned barriers)
        : memory(memory_), full(barriers), empty(barriers + 8 * stages) {}
    // By one thread, before the threads of all blocks of the cluster meet.
    __device__ __forceinline__ void init() const {
        for (int i = 0; i < stages; ++i) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, readers * blocks);
        }
        barrier_init_fence();
    }
    __device__ __forceinline__ void advance() {
        if (++stage == stages) stage = 0, phase ^= 1;
    }

    // The copying thread's part: copy(step, address of the stage, its barrier) issues copies of `copied` bytes in all.
    template <class Copy>
    __device__ __forceinline__ void fill(int steps, const Copy& copy) {
        for (int step = 0; step < steps; ++step, advance()) {
            wait_for(empty + 8 * stage, phase ^ 1);
            arrive_expect(full + 8 * stage, copied);
            copy(step, memory + stage * stage_bytes, full + 8 * stage);
        }
    }

    // A consumer warpgroup's part: multiply(step, address of the stage) issues wgmma. One group stays in flight while
    // the next stage is awaited; then the stage before is given back, and meanwhile() runs.
    template <class Multiply>
    __device__ __forceinline__ void drain(int steps, const Multiply& multiply) {
        drain(steps, multiply, [] {});
    }
    template <class Multiply, class Meanwhile>
    __device__ __forceinline__ void drain(int steps, const Multiply& multiply, const Meanwhile& meanwhile) {
        unsigned before = 0;
        for (int step = 0; step < steps; ++step) {
            take(step, multiply, before);
            meanwhile();
        }
        wgmma_wait<0>();
        give_back(before);
    }
    // The same where every other step multiplies otherwise, as the compiler knows.
    template <class First, class Second>
    __device__ __forceinline__ void drain_pairs(int steps, const First& first, const Second& second) {
        unsigned before = 0;
        for (int step = 0; step < steps; step += 2) {
            take(step, first, before);
            take(step + 1, second, before);
        }
        wgmma_wait<0>();
        give_back(before);
    }
    template <class Multiply>
    __device__ __forceinline__ void take(int step, const Multiply& multiply, unsigned& before) {
        wait_for(full + 8 * stage, phase);
        wgmma_fence();
        multiply(step, memory + stage * stage_bytes);
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0) give_back(before);
        before = stage;
        advance();
    }
    // One thread a warpgroup tells each block of the cluster: wgmma is one instruction of its four warps.
    __device__ __forceinline__ void give_back(unsigned which) const {
        const unsigned thread = threadIdx.x % 128;
        if (thread >= blocks) return;
        if constexpr (blocks > 1)
            arrive_there(address_in(empty + 8 * which, thread));
        else
            arrive(empty + 8 * which);
    }
};

// total = a * b at float32's accuracy, of f16 planes (hi_lo_split.cuh): stages hold two planes of 128 rows of a, then
// two of b's columns, up to 128, by n in whole 64s; the warpgroup has 64 rows from `first` on. Large products start
// anew at each stage and are added in float while the small ones run. Rows have `span` bytes.
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

// Tiles of bm x bn of a result, which blocks that stay take in turn. A cluster's blocks have neighbouring rows. `group`
// rows of tiles are walked column by column, so that what runs at one time reads a part of a and of b that L2 holds.
struct TilePlace {
    int row, column;  // of its first element
};
template <int bm, int bn, int group, int blocks = 1>
struct Tiles {
    int rows, columns, rank, first, step;  // rows and columns of clusters' tiles

    __device__ __forceinline__ Tiles(int m, int n)
        : rows((m + bm * blocks - 1) / (bm * blocks)), columns((n + bn - 1) / bn),
          rank(blocks > 1 ? (int)cluster_rank() : 0), first(blockIdx.x / blocks), step(gridDim.x / blocks) {}
    __device__ __forceinline__ int count() const { return rows * columns; }
    __device__ __forceinline__ TilePlace operator[](int index) const {
        const int span = group * columns, strip = index / span, within = index - strip * span;
        const int height = min(group, rows - strip * group);
        return {((strip * group + within % height) * blocks + rank) * bm, within / height * bn};
    }
    // Calls work(place) for each tile of this block.
    template <class Work>
    __device__ __forceinline__ void for_each_tile(const Work& work) const {
        for (int index = first; index < count(); index += step) work((*this)[index]);
    }
};

}  // namespace opbench
