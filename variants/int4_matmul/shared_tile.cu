// /// opbench
// title     = "shared-memory tiles, weights unpacked once per block; 64 x 64 outputs per block, 4 x 4 per thread"
// builds_on = "naive"
// mechanism = ["shared_memory_tile", "register_tile"]
// tile      = { m = 64, n = 64, k = "BK" }
// tune      = { BK = [32, 16] }
// requires  = ["cdiv(m, 64) <= 65535"]
//
// [[launch]]
// kernel = "int4_matmul_shared_tile"
// grid   = ["cdiv(n, 64)", "cdiv(m, 64)"]
// block  = [256]
// ///
//
// A block unpacks each weight of its tile once for 64 rows of a. A thread then reads eight floats from shared memory
// for 16 multiply-adds. Tiles are stored [k][row], so that a thread's four rows are one vector. Limit: CUDA cores
// multiply floats. Tensor cores would be faster: bf16 represents every 4-bit weight exactly.

#include <cuda_bf16.h>

constexpr int PITCH = 64 + 4;  // floats

// a [m][k], weight [n][k / 2], scale [groups][n], out [m][n]
extern "C" __global__ void __launch_bounds__(256)
    int4_matmul_shared_tile(const __nv_bfloat16* __restrict__ a, const unsigned char* __restrict__ weight,
                            const __nv_bfloat16* __restrict__ scale, __nv_bfloat16* __restrict__ out, int m, int n,
                            int k) {
    __shared__ __align__(16) float a_tile[BK][PITCH], b_tile[BK][PITCH];
    const int row0 = blockIdx.y * 64, col0 = blockIdx.x * 64;
    const int row = threadIdx.x / 16 * 4, col = threadIdx.x % 16 * 4;
    float sum[4][4] = {}, total[4][4] = {};
    for (int at = 0; at < k; at += BK) {
        for (int i = threadIdx.x; i < 64 * BK; i += 256) {
            const int line = i / BK, depth = i % BK;
            const bool exists = row0 + line < m && at + depth < k;
            a_tile[depth][line] = exists ? __bfloat162float(a[(size_t)(row0 + line) * k + at + depth]) : 0.0f;
        }
        for (int i = threadIdx.x; i < 64 * BK / 2; i += 256) {  // a byte holds two weights of a row
            const int line = i / (BK / 2), depth = i % (BK / 2) * 2;
            const bool exists = col0 + line < n && at + depth < k;
            const int two = exists ? weight[((size_t)(col0 + line) * k + at + depth) / 2] : 0x88;
            b_tile[depth][line] = two % 16 - 8, b_tile[depth + 1][line] = two / 16 - 8;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            const float4 x = *reinterpret_cast<const float4*>(&a_tile[i][row]);
            const float4 y = *reinterpret_cast<const float4*>(&b_tile[i][col]);
            const float left[4] = {x.x, x.y, x.z, x.w}, right[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int e = 0; e < 16; ++e) sum[e / 4][e % 4] += left[e / 4] * right[e % 4];
        }
        __syncthreads();
        if (at + BK < k && (at + BK) % 128 != 0) continue;
#pragma unroll
        for (int e = 0; e < 16; ++e) {  // the end of a group
            const int of = min(col0 + col + e % 4, n - 1);
            total[e / 4][e % 4] += sum[e / 4][e % 4] * __bfloat162float(scale[(size_t)(at / 128) * n + of]);
            sum[e / 4][e % 4] = 0.0f;
        }
    }
#pragma unroll
    for (int e = 0; e < 16; ++e) {
        const int to_row = row0 + row + e / 4, to_col = col0 + col + e % 4;
        if (to_row < m && to_col < n) out[(size_t)to_row * n + to_col] = __float2bfloat16(total[e / 4][e % 4]);
    }
}
