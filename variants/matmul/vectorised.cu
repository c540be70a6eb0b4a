// /// opbench
// title     = "float4 loads from global and shared memory, with a transposed in shared memory"
// builds_on = "register_tile_2d"
// mechanism = ["coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free"]
// tile      = { m = "BM", n = "BN", k = "BK" }
// tune      = { BM = [128, 64], BN = [128, 64], BK = [16, 8], TM = [8, 4], TN = [8, 4] }
// where     = [
//   "(BM, BN, BK, TM, TN) in ((64, 64, 16, 4, 4), (128, 64, 16, 8, 4), (128, 128, 8, 8, 8), (128, 128, 16, 8, 8))",
// ]
// requires  = ["cdiv(m, BM) <= 65535"]
//
// [[launch]]
// kernel = "matmul_vectorised"
// grid   = ["cdiv(n, BN)", "cdiv(m, BM)"]
// block  = ["BM * BN // (TM * TN)"]
// ///
//
// Every load is 16 bytes, from global and from shared memory. So there are a quarter of the previous variant's load
// instructions, with less index arithmetic. The tile of a is stored transposed, so that a thread reads four
// neighbouring rows as one float4. The four scalar stores of a float4 would then have bank conflicts; the padding of 4
// words prevents them (BK = 8; 2-way conflicts remain for 16). Limit: every step loads, waits and then computes; a
// warp's outputs form a flat row, so its threads share few values. After "kernel 6" of S. Boehm, How to Optimize a CUDA
// Matmul Kernel (2022).

#define THREADS_X (BN / TN)
#define THREADS_Y (BM / TM)
#define THREADS (THREADS_X * THREADS_Y)
#define A_PASSES (BM * BK / (4 * THREADS))
#define B_PASSES (BK * BN / (4 * THREADS))

// Load four neighbours of x [rows, cols] from (row, col), col a multiple of 4; zeros outside. `aligned`: cols % 4 == 0,
// so the four are all inside or all outside, and 16-byte aligned.
__device__ __forceinline__ float4 load4(const float* __restrict__ x, int row, int col, int rows, int cols,
                                        bool aligned) {
    const float* p = x + (size_t)row * cols + col;
    const int left = row < rows ? cols - col : 0;
    if (aligned) return left > 0 ? *reinterpret_cast<const float4*>(p) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return make_float4(left > 0 ? p[0] : 0.0f, left > 1 ? p[1] : 0.0f, left > 2 ? p[2] : 0.0f, left > 3 ? p[3] : 0.0f);
}

// a [m, k], b [k, n], out [m, n]; a block computes BM x BN. A thread's rows are groups of 4, which are 4 * THREADS_Y
// apart; its columns are groups of 4, which are 4 * THREADS_X apart.
extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_vectorised(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, int m, int n,
                      int k) {
    static_assert(BM * BK % (4 * THREADS) == 0 && BK * BN % (4 * THREADS) == 0, "tiles are loaded in whole passes");
    __shared__ __align__(16) float a_tile[BK][BM + 4];  // transposed: [k][row]
    __shared__ __align__(16) float b_tile[BK][BN];
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;
    const int x = threadIdx.x % THREADS_X * 4, y = threadIdx.x / THREADS_X * 4;
    const bool a_aligned = k % 4 == 0, b_aligned = n % 4 == 0;
    alignas(16) float sum[TM][TN] = {};
    for (int base = 0; base < k; base += BK) {
        float4 a_next[A_PASSES], b_next[B_PASSES];  // all loads first, so that they are under way together
#pragma unroll
        for (int p = 0; p < A_PASSES; ++p) {
            const int i = (threadIdx.x + p * THREADS) * 4;
            a_next[p] = load4(a, row0 + i / BK, base + i % BK, m, k, a_aligned);
        }
#pragma unroll
        for (int p = 0; p < B_PASSES; ++p) {
            const int i = (threadIdx.x + p * THREADS) * 4;
            b_next[p] = load4(b, base + i / BN, col0 + i % BN, k, n, b_aligned);
        }
#pragma unroll
        for (int p = 0; p < A_PASSES; ++p) {
            const int i = (threadIdx.x + p * THREADS) * 4;
            a_tile[i % BK + 0][i / BK] = a_next[p].x;
            a_tile[i % BK + 1][i / BK] = a_next[p].y;
            a_tile[i % BK + 2][i / BK] = a_next[p].z;
            a_tile[i % BK + 3][i / BK] = a_next[p].w;
        }
#pragma unroll
        for (int p = 0; p < B_PASSES; ++p) {
            const int i = (threadIdx.x + p * THREADS) * 4;
            *reinterpret_cast<float4*>(&b_tile[i / BN][i % BN]) = b_next[p];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            alignas(16) float a_part[TM], b_part[TN];
#pragma unroll
            for (int r = 0; r < TM; r += 4)
                *reinterpret_cast<float4*>(&a_part[r]) =
                    *reinterpret_cast<const float4*>(&a_tile[i][y + r * THREADS_Y]);
#pragma unroll
            for (int c = 0; c < TN; c += 4)
                *reinterpret_cast<float4*>(&b_part[c]) =
                    *reinterpret_cast<const float4*>(&b_tile[i][x + c * THREADS_X]);
#pragma unroll
            for (int r = 0; r < TM; ++r)
#pragma unroll
                for (int c = 0; c < TN; ++c) sum[r][c] += a_part[r] * b_part[c];
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < TM; ++r) {
        const int row = row0 + y + r / 4 * 4 * THREADS_Y + r % 4;
        if (row >= m) continue;
#pragma unroll
        for (int c = 0; c < TN; c += 4) {
            const int col = col0 + x + c * THREADS_X;
            float* p = out + (size_t)row * n + col;
            if (b_aligned) {
                if (col < n) *reinterpret_cast<float4*>(p) = *reinterpret_cast<const float4*>(&sum[r][c]);
            } else {
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (col + j < n) p[j] = sum[r][c + j];
            }
        }
    }
}
