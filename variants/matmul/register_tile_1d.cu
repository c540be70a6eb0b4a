// /// opbench
// title     = "register tiles of TM outputs in one column per thread, over shared-memory tiles"
// builds_on = "shared_tile"
// mechanism = ["coalesced", "shared_memory_tile", "register_tile"]
// tile      = { m = "BM", n = "BN", k = "BK" }
// tune      = { BM = [64, 128], BN = [64], BK = [16, 8], TM = [16, 8] }
// where     = ["BK * TM % BN == 0", "BK * TM % BM == 0"]
// requires  = ["cdiv(m, BM) <= 65535"]
//
// [[launch]]
// kernel = "matmul_register_tile_1d"
// grid   = ["cdiv(n, BN)", "cdiv(m, BM)"]
// block  = ["BM * BN // TM"]
// ///
//
// A thread computes TM outputs of one column, so each value of b that it reads from shared memory serves TM
// multiply-adds: TM + 1 loads of a word for TM multiply-adds instead of 2 * TM. All lanes of a warp read the same words
// of a (a broadcast), and the compiler loads four of them along k at once. Limit: still one word of shared memory per
// multiply-add. After "kernel 4" of S. Boehm, How to Optimize a CUDA Matmul Kernel (2022).

#define THREADS (BM * BN / TM)
#define A_PASSES (BM * BK / THREADS)
#define B_PASSES (BK * BN / THREADS)

// a [m, k], b [k, n], out [m, n]; a block computes BM x BN, thread t the column t % BN and TM rows from (t / BN) * TM.
extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_register_tile_1d(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, int m,
                            int n, int k) {
    static_assert(BM * BK % THREADS == 0 && BK * BN % THREADS == 0, "tiles are loaded in whole passes");
    __shared__ float a_tile[BM][BK];
    __shared__ float b_tile[BK][BN];
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;
    const int x = threadIdx.x % BN, y = threadIdx.x / BN * TM;
    float sum[TM] = {};
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
            const float b_value = b_tile[i][x];
#pragma unroll
            for (int r = 0; r < TM; ++r) sum[r] += a_tile[y + r][i] * b_value;
        }
        __syncthreads();
    }
    if (col0 + x >= n) return;
#pragma unroll
    for (int r = 0; r < TM; ++r) {
        const int row = row0 + y + r;
        if (row < m) out[(size_t)row * n + col0 + x] = sum[r];
    }
}
