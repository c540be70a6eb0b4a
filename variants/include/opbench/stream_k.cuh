// Few tiles of great depth (Stream-K, Osama et al., 2023): blocks divide the steps of all tiles evenly, and a second
// kernel adds the blocks' partial sums of each tile in the order of the depth. The number of blocks does not depend on
// the GPU, so the result has the same bits on every GPU.
#pragma once
#include <opbench/sums.cuh>

namespace opbench {

// Tiles of 128 x 128 of a result [m][n], `steps` deep each. Tiles of the same columns are consecutive, so concurrent
// blocks share these columns. Partial sums are stored at index block + tile.
struct StreamK {
    static constexpr int tile = 128, part = tile * tile;
    int down, steps, all, blocks;  // tiles in a column; all: steps of all tiles

    __device__ __forceinline__ StreamK(int m, int n, int steps_, int blocks_)
        : down((m + tile - 1) / tile), steps(steps_), all(down * ((n + tile - 1) / tile) * steps), blocks(blocks_) {}
    // The first step of a block, and the block that owns a step.
    __device__ __forceinline__ int begin(int block) const { return (int)((long long)all * block / blocks); }
    __device__ __forceinline__ int owner(int step) const { return (int)(((long long)(step + 1) * blocks - 1) / all); }
    __device__ __forceinline__ int row(int index) const { return index % down * tile; }
    __device__ __forceinline__ int column(int index) const { return index / down * tile; }

    // Call work(tile, steps) for each tile of which the block computes a part.
    template <class Work>
    __device__ __forceinline__ void for_each_tile(const Work& work) const {
        for (int at = begin(blockIdx.x), end = begin(blockIdx.x + 1); at < end;) {
            const int index = at / steps, next = min(end, (index + 1) * steps);
            work(index, next - at);
            at = next;
        }
    }
    // Store a warp's 16 rows of the block's part of a tile.
    template <int count>
    __device__ __forceinline__ void store(const float (&d)[count], float* parts, int index, int row) const {
        store_pairs(d, parts + (size_t)(blockIdx.x + index) * part, row, 0, tile, tile);
    }
    // A thread of the second kernel calls this; it calls finish(sums, row, column) for four elements of the result,
    // whose rows have length n.
    template <class Finish>
    __device__ __forceinline__ void add(const float* parts, int m, int n, const Finish& finish) const {
        const int quad = blockIdx.x * blockDim.x + threadIdx.x, row = quad / (n / 4), column = quad % (n / 4) * 4;
        if (row >= m) return;
        const int index = column / tile * down + row / tile, last = owner((index + 1) * steps - 1);
        float sum[4] = {};
        for (int block = owner(index * steps); block <= last; ++block) {
            const float* from = parts + (size_t)(block + index) * part + row % tile * tile + column % tile;
            const float4 x = *reinterpret_cast<const float4*>(from);
            sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
        }
        finish(sum, row, column);
    }
};

}  // namespace opbench
