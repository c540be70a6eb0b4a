// The work of a consumer warpgroup in the schedule of ring.cuh: multiply its rows of each tile, and finish their sums.
#pragma once
#include <opbench/ring.cuh>
#include <opbench/sums.cuh>

namespace opbench {

// A stage has bm rows of a, then bn columns of b. The warpgroup multiplies its rows of each tile, 64 at a time, and
// calls finish(sum, row, column) with the output's row and column where the warp's 16 rows of the sums begin.
template <Format format, bool by_n, class Ring, int bm, int bn, int group, int blocks, class Finish>
__device__ __forceinline__ void multiply_tiles(Ring& ring, const Tiles<bm, bn, group, blocks>& scheduler, int steps,
                                               const Finish& finish) {
    multiply_tiles<format, by_n>(ring, scheduler, steps, [](auto&) {}, finish);
}
// The same, but combine(sums) is called before the sums are finished; it reads the stages that follow the tile's
// products.
template <Format format, bool by_n, class Ring, int bm, int bn, int group, int blocks, class Combine, class Finish>
__device__ __forceinline__ void multiply_tiles(Ring& ring, const Tiles<bm, bn, group, blocks>& scheduler, int steps,
                                               const Combine& combine, const Finish& finish) {
    constexpr int tiles = bm / 128;  // tiles of 64 rows
    const int first = (threadIdx.x / 128 - 1) * tiles * 64, warp = threadIdx.x / 32 % 4;
    float sum[tiles][bn / 2];
    scheduler.for_each_tile([&](TilePlace tile) {
        ring.drain(steps, [&](int step, unsigned a) {
            multiply_stage<format, by_n>(sum, a + first * 128, a + bm * 128, step > 0);
        });
        combine(sum);
#pragma unroll
        for (int i = 0; i < tiles; ++i) finish(sum[i], tile.row + first + i * 64 + warp * 16, tile.column);
    });
}

// bf16 operands of the output's shape, which an epilogue reads. They follow a tile's products in the ring, so that they
// are loaded while other tiles are computed. Each operand uses some stages, which contain tiles of bm rows and 64
// columns. The maps' boxes are 64 x bm.
template <int bm, int bn>
struct OperandStages {
    static constexpr int slab_bytes = bm * 128, slabs = (bn + 63) / 64, fitting = (bm + slabs * 64) / bm,
                         per_operand = (slabs + fitting - 1) / fitting,
                         per_stage = (slabs + per_operand - 1) / per_operand;

    // The producer thread: copy an operand's tile.
    template <class Ring>
    __device__ __forceinline__ static void copy(Ring& ring, const TensorMap* map, const TilePlace& tile) {
        const auto copy_slabs = [&](int step, unsigned to, unsigned full) {
#pragma unroll
            for (int i = 0; i < per_stage; ++i)
                load(to + i * slab_bytes, map, full, tile.column + (step * per_stage + i) * 64, tile.row);
        };
        ring.fill(per_operand, copy_slabs, 0, per_stage * slab_bytes);
    }
    // A consumer warpgroup: sum = combine(sum, operand) for its rows of the tile.
    template <class Ring, int tiles, int count, class Combine>
    __device__ __forceinline__ static void combine(Ring& ring, float (&sum)[tiles][count], const Combine& combine) {
        const unsigned lane = threadIdx.x % 32, line = lane % 16;
        const unsigned row = (threadIdx.x / 128 - 1) * tiles * 64 + threadIdx.x / 32 % 4 * 16 + line;
#pragma unroll
        for (int step = 0; step < per_operand; ++step)
            ring.visit(1, [&](int, unsigned stage) {
#pragma unroll
                for (int part = 0; part < per_stage; ++part)
#pragma unroll
                    for (int i = 0; i < tiles; ++i)
#pragma unroll
                        for (int j = 0; j < 4; ++j) {
                            const int at = (step * per_stage + part) * 32 + j * 8;
                            if (at >= count) continue;
                            unsigned operand[4];
                            load_four(operand, stage + part * slab_bytes + (row + i * 64) * 128 +
                                                   ((2 * j + lane / 16) ^ line % 8) * 16);
#pragma unroll
                            for (int pair = 0; pair < 4; ++pair) {
                                float* const two = &sum[i][at + pair * 2];
                                two[0] = combine(two[0], __uint_as_float(operand[pair] << 16));
                                two[1] = combine(two[1], __uint_as_float(operand[pair] & 0xffff0000u));
                            }
                        }
            });
    }
};

}  // namespace opbench
