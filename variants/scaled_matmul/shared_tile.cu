// /// opbench
// title     = "shared-memory tiles, converted once per block; four numbers per load, 4 x 4 outputs per thread"
// builds_on = "naive"
// mechanism = ["coalesced", "shared_memory_tile", "register_tile", "bank_conflict_free"]
// tile      = { m = 64, n = 64, k = "BK" }
// tune      = { BK = [32, 64] }
// supports  = { scaling = ["tensor", "row", "block"], a_dtype = ["e4m3", "e5m2"], b_dtype = ["e4m3", "e5m2"] }
// requires  = ["cdiv(m, 64) <= 65535"]
//
// [define]
// A_E5M2   = "a_dtype == 'e5m2'"
// B_E5M2   = "b_dtype == 'e5m2'"
// BY_ROW   = "scaling == 'row'"
// BY_BLOCK = "scaling == 'block'"
// ALIGNED  = "k % 4 == 0"
//
// [[launch]]
// kernel = "scaled_matmul_shared_tile"
// grid   = ["cdiv(n, 64)", "cdiv(m, 64)"]
// block  = [256]
// ///
//
// A thread of the first variant converts two elements per multiply-add. Here a block converts each element of its tiles
// once, four with one load, and reads floats from shared memory, eight for 16 multiply-adds. The tiles are stored
// [k][row], so that four rows of a thread are one vector, and rows are swizzled by k, so that a warp stores to 32
// banks. Rows whose length is not a multiple of 4 are loaded byte by byte. Limit: CUDA cores multiply floats; tensor
// cores could multiply the 8-bit floats directly.

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#if A_E5M2
typedef __nv_fp8x4_e5m2 A;
#else
typedef __nv_fp8x4_e4m3 A;
#endif
#if B_E5M2
typedef __nv_fp8x4_e5m2 B;
#else
typedef __nv_fp8x4_e4m3 B;
#endif

// Line k of the tile holds element k of all rows. Return the index of `row` in this line.
__device__ __forceinline__ int swizzled(int row, int k) { return row ^ k / 4 % 8 * 4; }

// Load four neighbours of x [rows][k] from (row, at) as floats; zeros outside.
template <class Four>
__device__ __forceinline__ float4 load_four(const unsigned char* __restrict__ x, int row, int at, int rows, int k) {
    unsigned bits = 0;
    if (row < rows) {
        const unsigned char* from = x + (size_t)row * k + at;
        if (ALIGNED) {
            if (at < k) bits = *reinterpret_cast<const unsigned*>(from);
        } else {
            for (int i = 0; i < 4; ++i) bits |= at + i < k ? (unsigned)from[i] << 8 * i : 0;
        }
    }
    Four four;
    four.__x = bits;
    return float4(four);
}

// Copy 64 rows of BK elements, which begin at (row0, at), to a tile: a warp copies 8 words of 4 rows.
template <class Four>
__device__ __forceinline__ void fill(float (&tile)[BK][64], const unsigned char* __restrict__ x, int row0, int at,
                                     int rows, int k) {
#pragma unroll
    for (int word = threadIdx.x; word < 64 * BK / 4; word += 256) {
        const int part = word / 32 % (BK / 32), row = word / BK * 4 + word % 32 / 8, column = part * 32 + word % 8 * 4;
        const float4 four = load_four<Four>(x, row0 + row, at + column, rows, k);
        const int place = swizzled(row, column);
        tile[column][place] = four.x, tile[column + 1][place] = four.y;
        tile[column + 2][place] = four.z, tile[column + 3][place] = four.w;
    }
}

// a [m][k], b [n][k], out [m][n]; scales: see operator.py
extern "C" __global__ void __launch_bounds__(256)
    scaled_matmul_shared_tile(const unsigned char* __restrict__ a, const unsigned char* __restrict__ b,
                              const float* __restrict__ scale_a, const float* __restrict__ scale_b,
                              __nv_bfloat16* __restrict__ out, int m, int n, int k) {
    __shared__ __align__(16) float a_tile[BK][64], b_tile[BK][64];
    const int row0 = blockIdx.y * 64, col0 = blockIdx.x * 64;
    const int row = threadIdx.x / 16 * 4, col = threadIdx.x % 16 * 4;
    float sum[4][4] = {}, total[4][4] = {};
    for (int at = 0; at < k; at += BK) {
        fill<A>(a_tile, a, row0, at, m, k);
        fill<B>(b_tile, b, col0, at, n, k);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            const float4 x = *reinterpret_cast<const float4*>(&a_tile[i][swizzled(row, i)]);
            const float4 y = *reinterpret_cast<const float4*>(&b_tile[i][swizzled(col, i)]);
            const float left[4] = {x.x, x.y, x.z, x.w}, right[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int e = 0; e < 16; ++e) sum[e / 4][e % 4] += left[e / 4] * right[e % 4];
        }
        __syncthreads();
        if (at + BK < k && !(BY_BLOCK && (at + BK) % 128 == 0)) continue;
        const int block = at / 128, blocks = (k + 127) / 128;
#pragma unroll
        for (int e = 0; e < 16; ++e) {
            const int of_row = min(row0 + row + e / 4, m - 1), of_col = min(col0 + col + e % 4, n - 1);
            total[e / 4][e % 4] += sum[e / 4][e % 4] * (scale_a[BY_BLOCK ? (size_t)block * m + of_row
                                                                : BY_ROW ? of_row
                                                                         : 0] *
                                                        scale_b[BY_BLOCK ? of_col / 128 * blocks + block
                                                                : BY_ROW ? of_col
                                                                         : 0]);
            sum[e / 4][e % 4] = 0.0f;
        }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        if (row0 + row + r >= m) break;
        __nv_bfloat16* to = out + (size_t)(row0 + row + r) * n + col0 + col;
        const int left = n - col0 - col;
        if (n % 4 == 0) {  // four columns by one store
            struct __align__(8) {
                __nv_bfloat162 pairs[2];
            } four = {__floats2bfloat162_rn(total[r][0], total[r][1]), __floats2bfloat162_rn(total[r][2], total[r][3])};
            if (left > 0) *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(&four);
        } else {
            for (int e = 0; e < min(4, left); ++e) to[e] = __float2bfloat16(total[r][e]);
        }
    }
}
