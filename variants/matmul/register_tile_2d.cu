// /// opbench
// title     = "register tiles of TM×TN outputs per thread, over shared-memory tiles"
// builds_on = "register_tile_1d"
// mechanism = ["coalesced", "shared_memory_tile", "register_tile", "bank_conflict_free"]
// tile      = { m = "BM", n = "BN", k = "BK" }
// tune      = { BM = [128, 64], BN = [128, 64], BK = [16, 8], TM = [8, 4], TN = [8, 4] }
// where     = ["(BM, BN, TM, TN) in ((64, 64, 4, 4), (128, 64, 8, 4), (128, 128, 8, 8))"]
// requires  = ["cdiv(m, BM) <= 65535"]
//
// [[launch]]
// kernel = "matmul_register_tile_2d"
// grid   = ["cdiv(n, BN)", "cdiv(m, BM)"]
// block  = ["BM * BN // (TM * TN)"]
// ///
//
// An outer product in registers: TM + TN words from shared memory serve TM * TN multiply-adds. So an 8x8 tile needs a
// quarter of a word per multiply-add; the previous variant needs one word. The columns of a thread are BN / TN apart,
// so the lanes of a warp read neighbouring words of b (no bank conflicts) and the stores are coalesced. Limit: scalar
// loads from shared memory and the index arithmetic of scalar global loads. After "kernel 5" of S. Boehm, How to
// Optimize a CUDA Matmul Kernel (2022), and V. Volkov, Better Performance at Lower Occupancy (GTC 2010).

#define THREADS_X (BN / TN)
#define THREADS_Y (BM / TM)
#define THREADS (THREADS_X * THREADS_Y)
#define A_PASSES (BM * BK / THREADS)
#define B_PASSES (BK * BN / THREADS)

// a [m, k], b [k, n], out [m, n]; a block computes BM x BN, thread (x, y) the rows y, y + THREADS_Y, ... and the
// columns x, x + THREADS_X, ...
extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_register_tile_2d(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, int m,
                            int n, int k) {
    static_assert(BM * BK % THREADS == 0 && BK * BN % THREADS == 0, "tiles are loaded in whole passes");
    // Without the extra word per row, the compiler would load four k of a at once. That takes up to 196 registers per
    // thread and leaves room for only one block per multiprocessor.
    __shared__ float a_tile[BM][BK + 1];
    __shared__ float b_tile[BK][BN];
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;
    const int x = threadIdx.x % THREADS_X, y = threadIdx.x / THREADS_X;
    float sum[TM][TN] = {};
    for (int base = 0; base < k; base += BK) {
#pragma unroll
        for (int p = 0; p < A_PASSES; ++p) {
            const int i = threadIdx.x + p * THREADS;
            const int row = row0 + i / BK, col = base + i % BK;
            a_tile[i / BK][i % BK] = row < m && col < k ? a[(size_t)row * k + col] : 0.0f;
        }
#pragma unroll
        for (int p = 0; p < B_PASSES; ++p) {
            const int i = threadIdx.x + p * THREADS;
            const int row = base + i / BN, col = col0 + i % BN;
            b_tile[i / BN][i % BN] = row < k && col < n ? b[(size_t)row * n + col] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            float a_part[TM], b_part[TN];
#pragma unroll
            for (int r = 0; r < TM; ++r) a_part[r] = a_tile[y + r * THREADS_Y][i];
#pragma unroll
            for (int c = 0; c < TN; ++c) b_part[c] = b_tile[i][x + c * THREADS_X];
#pragma unroll
            for (int r = 0; r < TM; ++r)
#pragma unroll
                for (int c = 0; c < TN; ++c) sum[r][c] += a_part[r] * b_part[c];
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < TM; ++r)
#pragma unroll
        for (int c = 0; c < TN; ++c) {
            const int row = row0 + y + r * THREADS_Y, col = col0 + x + c * THREADS_X;
            if (row < m && col < n) out[(size_t)row * n + col] = sum[r][c];
        }
}
