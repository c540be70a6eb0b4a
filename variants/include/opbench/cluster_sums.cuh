// Sums whose depth is split over the blocks of a cluster. Each block stores its partial sums of a tile in its shared
// memory, and adds some rows of all partial sums in the order of the blocks. So no partial sum is written to global
// memory, and there is no second launch.
#pragma once
#include <opbench/barrier.cuh>
#include <opbench/gradients.cuh>

namespace opbench {

// As store_gradient, for the `split` blocks of a cluster, which compute the same tile; all their threads call it.
// `warp` holds the first row and column of the warp's part of the tile.
template <class Block, int split, Epilogue epilogue, class Out, class Warp, class Rows = SameRows>
__device__ __forceinline__ void store_cluster_gradient(const typename Block::Sums& sum, unsigned char* memory, Out* out,
                                                       const Out* other, const Warp& warp, const BlockPlace& tile,
                                                       int rows, int columns, const Rows& place = Rows()) {
    constexpr int pitch = Block::bn + 8, share = Block::bm / split, quads = Block::bn / 4;
    static_assert(Block::bm % split == 0, "each block stores as many rows");
    static_assert(Block::bm * pitch * 4 <= Block::stages * Block::stage_bytes, "the sums fit where the stages were");
    const int lane = threadIdx.x % 32, rank = (int)cluster_rank();
    float* const fragment = reinterpret_cast<float*>(memory) + (warp.m + lane / 4) * pitch + warp.n + lane % 4 * 2;
#pragma unroll
    for (int e = 0; e < Block::tm * Block::tn * 2; ++e) {
        const int mi = e / (Block::tn * 2), ni = e / 2 % Block::tn, half = e % 2;
        store_pair(fragment + (mi * 16 + half * 8) * pitch + ni * 8, sum[mi][ni][half * 2], sum[mi][ni][half * 2 + 1]);
    }
    cluster_sync();
    unsigned from[split];
#pragma unroll
    for (int z = 0; z < split; ++z) from[z] = address_in(shared_address(memory) + rank * share * pitch * 4, z);
    for (int e = threadIdx.x; e < share * quads; e += Block::threads) {
        const int row = tile.row + rank * share + e / quads, column = tile.column + e % quads * 4;
        if (row >= rows || column >= columns) continue;
        float4 part[split];
#pragma unroll
        for (int z = 0; z < split; ++z) part[z] = load_remote_float4(from[z] + (e / quads * pitch + e % quads * 4) * 4);
        float total[4] = {};
#pragma unroll
        for (int z = 0; z < split; ++z)
            total[0] += part[z].x, total[1] += part[z].y, total[2] += part[z].z, total[3] += part[z].w;
        const size_t to = (size_t)place(row) * columns + column;
        if (columns % 4 == 0) {
            finish_vector<epilogue>(out + to, total, epilogue == plain ? nullptr : other + to);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (column + i < columns)
                    out[to + i] = Out(finished<epilogue>(total[i], epilogue == plain ? 0.0f : (float)other[to + i]));
        }
    }
    cluster_sync();  // the other blocks have read the sums of this block
}

}  // namespace opbench
