// The work of a consumer warpgroup in the schedule of ring.cuh: multiply its rows of each tile, and finish their sums.
#pragma once
#include <opbench/ring.cuh>

namespace opbench {

// A stage has bm rows of a, then bn columns of b. The warpgroup multiplies its rows of each tile, 64 at a time, and
// calls finish(sum, row, column) with the output's row and column where the warp's 16 rows of the sums begin.
template <Format format, bool by_n, class Ring, int bm, int bn, int group, int blocks, class Finish>
__device__ __forceinline__ void multiply_tiles(Ring& ring, const Tiles<bm, bn, group, blocks>& walk, int steps,
                                               const Finish& finish) {
    constexpr int tiles = bm / 128;  // of 64 rows
    const int first = (threadIdx.x / 128 - 1) * tiles * 64, warp = threadIdx.x / 32 % 4;
    float sum[tiles][bn / 2];
    walk.for_each_tile([&](TilePlace tile) {
        ring.drain(steps, [&](int step, unsigned a) {
            multiply_stage<format, by_n>(sum, a + first * 128, a + bm * 128, step > 0);
        });
#pragma unroll
        for (int i = 0; i < tiles; ++i) finish(sum[i], tile.row + first + i * 64 + warp * 16, tile.column);
    });
}

}  // namespace opbench
