// /// opbench
// title     = "register tiles of 8 x 8 outputs per thread over double-buffered shared-memory tiles"
// builds_on = "naive"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "fewer_barriers", "double_buffer",
// ]
// tile      = { m = "BM", n = "BN", k = "BK" }
// supports  = { epilogue = ["none", "mask"], dtype = ["f32", "bf16"] }
// define    = { BF16 = "dtype == 'bf16'", MASK = "epilogue == 'mask'" }
// tune      = { BM = [64, 128], BN = [64, 128], BK = [16, 8] }
// where     = ["BM == BN and BK == (16 if BM == 64 else 8)"]
// requires  = ["m * n < 2 ** 31", "(n + 1) * k < 2 ** 31", "m * k < 2 ** 31"]
//
// [[launch]]
// kernel = "linear_dgrad_register_tile"
// grid   = ["cdiv(m, BM) * cdiv(k, BN)"]
// block  = ["BM * BN // 64"]
// ///
//
// A product with the right operand stored by rows. A step of BK elements of n is loaded into registers while the
// previous step is multiplied, and 16 elements from shared memory serve 64 multiply-adds. Lanes read dout along n, and
// its rows are transposed while they are stored to shared memory; they read the weights along k. So both loads follow
// the stored order. Limit: the multiply-adds, loads of single elements, and for small batches few tiles. After
// CUTLASS's SIMT SGEMM, layout "nn" (A. Kerr et al., 2017).
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int THREADS = (BM / 8) * (BN / 8);
constexpr int LANES_M = 4, LANES_N = 8;  // a warp covers 32 rows and 64 columns, 8 x 8 per thread
constexpr int WARPS_N = BN / 64;
constexpr int A_PITCH = BM + 4, B_PITCH = BN;
constexpr int A_LOADS = BM * BK / THREADS, B_LOADS = BN * BK / THREADS;
constexpr int A_ROWS = THREADS / BK, B_ROWS = THREADS / BN;  // rows that the block loads at once

// dout [m][n], weight [n][k], out and dx [m][k]
extern "C" __global__ void __launch_bounds__(THREADS)
    linear_dgrad_register_tile(const T* __restrict__ dout, const T* __restrict__ weight,
#if MASK
                               const T* __restrict__ out,
#endif
                               T* __restrict__ dx, int m, int n, int k) {
    __shared__ __align__(16) float a_tile[2][BK][A_PITCH];
    __shared__ __align__(16) float b_tile[2][BK][B_PITCH];
    const int tiles_n = (k + BN - 1) / BN;
    const int row0 = blockIdx.x / tiles_n * BM, column0 = blockIdx.x % tiles_n * BN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m_thread = warp / WARPS_N * 32 + lane / LANES_N * 4;
    const int n_thread = warp % WARPS_N * 64 + lane % LANES_N * 4;
    const int a_depth = threadIdx.x % BK, a_row = threadIdx.x / BK;
    const int b_depth = threadIdx.x / BN, b_column = threadIdx.x % BN;

    float a_next[A_LOADS], b_next[B_LOADS];
    auto load = [&](int first) {
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l) {
            const int row = row0 + a_row + l * A_ROWS, depth = first + a_depth;
            a_next[l] = row < m && depth < n ? (float)dout[row * n + depth] : 0.0f;
        }
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l) {
            const int depth = first + b_depth + l * B_ROWS, column = column0 + b_column;
            b_next[l] = depth < n && column < k ? (float)weight[depth * k + column] : 0.0f;
        }
    };
    auto store = [&](int buffer) {
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l) a_tile[buffer][a_depth][a_row + l * A_ROWS] = a_next[l];
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l) b_tile[buffer][b_depth + l * B_ROWS][b_column] = b_next[l];
    };

    float sum[8][8] = {};
    load(0);
    store(0);
    __syncthreads();
    int buffer = 0;
    for (int first = 0; first < n; first += BK) {
        const bool more = first + BK < n;
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
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int row = row0 + m_thread + i % 4 + i / 4 * 4 * LANES_M;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int column = column0 + n_thread + j % 4 + j / 4 * 4 * LANES_N;
            if (row >= m || column >= k) continue;
            float total = sum[i][j];
#if MASK
            if (!((float)out[row * k + column] > 0.0f)) total = 0.0f;
#endif
            dx[row * k + column] = (T)total;
        }
    }
}
