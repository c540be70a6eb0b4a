// /// opbench
// mechanism = ["coalesced", "shared_memory_tile", "register_tile"]
// tile      = { m = "BM", n = "BN", k = "BK", split = "SPLIT" }
// supports  = { bias = ["no", "yes"], dtype = ["f32", "bf16"] }
// requires  = ["m * n < 2 ** 31", "m * k < 2 ** 31", "SPLIT * n * (k + 1) <= 2 ** 30"]
// where     = ["BM == BN and BK == (16 if BM == 64 else 8)"]
//
// [define]
// BF16 = "dtype == 'bf16'"
// BIAS = "1 if bias == 'yes' else 0"
//
// [variant.register_tile]
// title     = "register tiles of 8 x 8 outputs, double buffering; a column of ones gives the bias gradient"
// builds_on = "naive"
// mechanism = ["fewer_barriers", "double_buffer"]
// tune      = { BM = [64, 128], BN = [64, 128], BK = [16, 8], SPLIT = [1] }
//
// [[variant.register_tile.launch]]
// kernel = "linear_wgrad_register_tile"
// grid   = ["cdiv(n, BM) * cdiv(k + BIAS, BN)"]
// block  = ["BM * BN // 64"]
//
// [variant.register_tile_split]
// title     = "register_tile with the batch split over SPLIT blocks per tile; a second kernel adds partial sums"
// builds_on = "register_tile"
// mechanism = ["vectorised_access", "split_k"]
// tune      = { BM = [64, 128], BN = [64, 128], BK = [16, 8], SPLIT = [8, 32, 2] }
// workspace = { parts = "SPLIT * n * (k + BIAS)" }
//
// [[variant.register_tile_split.launch]]
// kernel = "linear_wgrad_register_tile"
// grid   = ["cdiv(n, BM) * cdiv(k + BIAS, BN)", "SPLIT"]
// block  = ["BM * BN // 64"]
// args   = ["x", "dout", "parts", "m", "n", "k"]
//
// [[variant.register_tile_split.launch]]
// kernel = "linear_wgrad_add_parts"
// grid   = ["cdiv(n * (k + BIAS), 256)"]
// block  = [256]
// args   = ["parts", "dweight", "dbias?", "n", "k"]
// ///
//
// A product whose depth is the batch: rows of dout and of x are already in the order of shared memory, so nothing is
// transposed. A step of BK items is loaded into registers while the previous step is multiplied, and 16 elements from
// shared memory serve 64 multiply-adds. A last column of ones yields the gradient of the bias. With few weights and a
// large batch there are few tiles. Then SPLIT blocks share the depth, and a second kernel adds their sums in index
// order: the same bits every time on every GPU. Limit: the multiply-adds; for the batches of training, writing dweight.
// After CUTLASS's SIMT SGEMM, layout "nt" (A. Kerr et al., 2017), and "split K" in its efficient GEMM notes.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int THREADS = (BM / 8) * (BN / 8);
constexpr int LANES_M = 4, LANES_N = 8;  // a warp covers 32 rows and 64 columns, 8 x 8 per thread
constexpr int WARPS_N = BN / 64;
constexpr int A_LOADS = BM * BK / THREADS, B_LOADS = BN * BK / THREADS;
constexpr int A_ROWS = THREADS / BM, B_ROWS = THREADS / BN;  // items that the block loads at once

// x [m][k], dout [m][n], dweight [n][k], dbias [n]; with SPLIT > 1, partial sums [SPLIT][n][k + BIAS] instead of
// dweight and dbias
extern "C" __global__ void __launch_bounds__(THREADS)
    linear_wgrad_register_tile(const T* __restrict__ x, const T* __restrict__ dout, float* __restrict__ dweight,
#if BIAS && SPLIT == 1
                               float* __restrict__ dbias,
#endif
                               int m, int n, int k) {
    __shared__ __align__(16) float a_tile[2][BK][BM];
    __shared__ __align__(16) float b_tile[2][BK][BN];
    const int tiles_n = (k + BIAS + BN - 1) / BN, all = (m + BK - 1) / BK;
    const int row0 = blockIdx.x / tiles_n * BM, column0 = blockIdx.x % tiles_n * BN;
    const int start = all * (int)blockIdx.y / SPLIT * BK;
    const int end = min(m, all * (int)(blockIdx.y + 1) / SPLIT * BK);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m_thread = warp / WARPS_N * 32 + lane / LANES_N * 4;
    const int n_thread = warp % WARPS_N * 64 + lane % LANES_N * 4;
    const int a_depth = threadIdx.x / BM, a_row = threadIdx.x % BM;
    const int b_depth = threadIdx.x / BN, b_column = threadIdx.x % BN;

    float a_next[A_LOADS], b_next[B_LOADS];
    // after the end of the batch, it is multiplied by zeros
    const float otherwise = BIAS && column0 + b_column == k ? 1.0f : 0.0f;
    auto load = [&](int first) {
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l) {
            const int item = first + a_depth + l * A_ROWS, row = row0 + a_row;
            a_next[l] = item < end && row < n ? (float)dout[item * n + row] : 0.0f;
        }
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l) {
            const int item = first + b_depth + l * B_ROWS, column = column0 + b_column;
            b_next[l] = item < end && column < k ? (float)x[item * k + column] : otherwise;
        }
    };
    auto store = [&](int buffer) {
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l) a_tile[buffer][a_depth + l * A_ROWS][a_row] = a_next[l];
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l) b_tile[buffer][b_depth + l * B_ROWS][b_column] = b_next[l];
    };

    float sum[8][8] = {};
    load(start);
    store(0);
    __syncthreads();
    int buffer = 0;
    for (int first = start; first < end; first += BK) {
        const bool more = first + BK < end;
        if (more) load(first + BK);
#pragma unroll
        for (int d = 0; d < BK; ++d) {
            const float4 a0 = *reinterpret_cast<const float4*>(&a_tile[buffer][d][m_thread]);
            const float4 a1 = *reinterpret_cast<const float4*>(&a_tile[buffer][d][m_thread + 4 * LANES_M]);
            const float4 b0 = *reinterpret_cast<const float4*>(&b_tile[buffer][d][n_thread]);
            const float4 b1 = *reinterpret_cast<const float4*>(&b_tile[buffer][d][n_thread + 4 * LANES_N]);
            const float u[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};
            const float v[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) sum[i][j] += u[i] * v[j];
        }
        // The other buffer was last read before the previous barrier, so one barrier per step is enough.
        buffer ^= 1;
        if (more) store(buffer);
        __syncthreads();
    }
#if SPLIT > 1
    const int columns = k + BIAS;
    dweight += (size_t)blockIdx.y * n * columns;
#else
    const int columns = k;
#endif
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int row = row0 + m_thread + i % 4 + i / 4 * 4 * LANES_M;
        if (row >= n) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int column = column0 + n_thread + half * 4 * LANES_N;
            float* to = dweight + (size_t)row * columns + column;
            const float* v = &sum[i][half * 4];
            if (columns % 4 == 0) {
                if (column < columns) *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
            } else {
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (column + j < columns) to[j] = v[j];
            }
#if BIAS && SPLIT == 1
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (column + j == k) dbias[row] = v[j];
#endif
        }
    }
}

// parts [SPLIT][n][k + BIAS], dweight [n][k], dbias [n]
extern "C" __global__ void __launch_bounds__(256)
    linear_wgrad_add_parts(const float* __restrict__ parts, float* __restrict__ dweight,
#if BIAS
                           float* __restrict__ dbias,
#endif
                           int n, int k) {
    const int columns = k + BIAS, total = n * columns, index = blockIdx.x * 256 + threadIdx.x;
    if (index >= total) return;
    float sum = 0.0f;
#pragma unroll 4
    for (int z = 0; z < SPLIT; ++z) sum += parts[(size_t)z * total + index];
    const int row = index / columns, column = index % columns;
    if (column < k) dweight[(size_t)row * k + column] = sum;
#if BIAS
    if (column == k) dbias[row] = sum;
#endif
}
