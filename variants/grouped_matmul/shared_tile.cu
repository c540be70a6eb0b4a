// /// opbench
// title     = "shared-memory tiles of both operands, 64 x 64 outputs of one group per block, 4 x 4 per thread"
// builds_on = "naive"
// mechanism = ["shared_memory_tile", "register_tile"]
// tile      = { m = 64, n = 64, k = "BK" }
// tune      = { BK = [32, 16] }
// requires  = ["cdiv(m, 64) + groups <= 65535"]
//
// [[launch]]
// kernel = "grouped_matmul_shared_tile"
// grid   = ["cdiv(n, 64)", "cdiv(m, 64) + groups"]
// block  = [256]
// ///
//
// A tile needs one matrix, so no tile has rows of two groups. A block counts the tiles of the groups before its own.
// The grid has one more row of blocks per group, because the last tile of a group may be partial; blocks without a tile
// end at once. Limit: CUDA cores multiply floats.

#include <cuda_bf16.h>

constexpr int PITCH = 64 + 4;  // floats

// Copy 64 rows of BK elements from (row0, at) to a tile, [k][row]; zeros after the last row and after k.
__device__ __forceinline__ void fill(float (&tile)[BK][PITCH], const __nv_bfloat16* __restrict__ x, int row0, int at,
                                     int rows, int k) {
    for (int i = threadIdx.x; i < 64 * BK; i += 256) {
        const int line = i / BK, depth = i % BK;
        const bool exists = row0 + line < rows && at + depth < k;
        tile[depth][line] = exists ? __bfloat162float(x[(size_t)(row0 + line) * k + at + depth]) : 0.0f;
    }
}

// a [m][k], b [groups][n][k], ends [groups], out [m][n]
extern "C" __global__ void __launch_bounds__(256)
    grouped_matmul_shared_tile(const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b,
                               const int* __restrict__ ends, __nv_bfloat16* __restrict__ out, int m, int n, int k,
                               int groups) {
    __shared__ __align__(16) float a_tile[BK][PITCH], b_tile[BK][PITCH];
    int group = 0, start = 0, end = 0, tile = blockIdx.y;
    for (; group < groups; ++group) {
        end = ends[group];
        const int tiles = (end - start + 63) / 64;
        if (tile < tiles) break;
        tile -= tiles, start = end;
    }
    if (group == groups) return;
    const int row0 = start + tile * 64, col0 = blockIdx.x * 64;
    const int row = threadIdx.x / 16 * 4, col = threadIdx.x % 16 * 4;
    float sum[4][4] = {};
    for (int at = 0; at < k; at += BK) {
        fill(a_tile, a, row0, at, end, k);
        fill(b_tile, b + (size_t)group * n * k, col0, at, n, k);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            const float4 x = *reinterpret_cast<const float4*>(&a_tile[i][row]);
            const float4 y = *reinterpret_cast<const float4*>(&b_tile[i][col]);
            const float left[4] = {x.x, x.y, x.z, x.w}, right[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int e = 0; e < 16; ++e) sum[e / 4][e % 4] += left[e / 4] * right[e % 4];
        }
        __syncthreads();  // otherwise the next tile would overwrite data that slower warps still read
    }
#pragma unroll
    for (int e = 0; e < 16; ++e) {
        const int to_row = row0 + row + e / 4, to_col = col0 + col + e % 4;
        if (to_row < end && to_col < n) out[(size_t)to_row * n + to_col] = __float2bfloat16(sum[e / 4][e % 4]);
    }
}
