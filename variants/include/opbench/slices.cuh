// Add the partial tiles of warps that divide the depth of a block: each warp has the sums of its part of every step.
#pragma once

#include <opbench/epilogue.cuh>

namespace opbench {

// As store_tile, for a block whose part of the output begins at (m0, n0). The sums pass through the stages' memory and
// are added in a fixed order of the tiles; every thread stores four neighbours of a row at a time.
template <class Block, bool with_bias, int activation_id, class Warp, class Out, class Added = NoResidual>
__device__ __forceinline__ void store_slices(const typename Block::Sums& sum, unsigned char* memory, const Warp& warp,
                                             Out* out, const typename Block::T* bias, int m0, int n0, int rows,
                                             int columns, const Added& residual = Added()) {
    constexpr int pitch = Block::bn + 8, tile = Block::bm * pitch;
    static_assert(Block::wk * tile * 4 <= Block::stages * Block::stage_bytes, "the sums fit where the stages were");
    const int lane = threadIdx.x % 32;
    float* const sums = reinterpret_cast<float*>(memory);
#pragma unroll
    for (int e = 0; e < Block::tm * Block::tn * 2; ++e) {
        const int mi = e / 2 / Block::tn, ni = e / 2 % Block::tn, half = e % 2;
        store_pair(
            sums + warp.tile * tile + (warp.m + mi * 16 + half * 8 + lane / 4) * pitch + warp.n + ni * 8 + lane % 4 * 2,
            sum[mi][ni][half * 2], sum[mi][ni][half * 2 + 1]);
    }
    __syncthreads();
#pragma unroll 1
    for (int e = threadIdx.x; e < Block::bm * Block::bn / 4; e += Block::threads) {
        const int row = e / (Block::bn / 4), column = e % (Block::bn / 4) * 4;
        if (m0 + row >= rows || n0 + column >= columns) continue;
        const float* from = sums + row * pitch + column;
        float4 total = *reinterpret_cast<const float4*>(from);
#pragma unroll
        for (int z = 1; z < Block::wk; ++z) {
            const float4 more = *reinterpret_cast<const float4*>(from + z * tile);
            total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
        }
        const int at = n0 + column;
        if constexpr (Added::exists)
            total = residual.add_four(total, (size_t)(m0 + row) * columns + at, columns - at, columns % 2 == 0);
        store_four<with_bias, activation_id>(out + ((size_t)(m0 + row) * columns + at), total,
                                             bias + (with_bias ? at : 0), columns - at, columns % 4 == 0);
    }
}

}  // namespace opbench
