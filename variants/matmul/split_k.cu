// /// opbench
// title     = "split-K: SPLIT blocks per tile; a second kernel adds the partial sums in fixed order"
// builds_on = "vectorised"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "split_k",
// ]
// tune      = { SPLIT = [8, 32, 128, 512] }
// requires  = ["SPLIT * m * n <= 2 ** 30"]
// workspace = { parts = "SPLIT * m * n" }
//
// [[launch]]
// kernel = "sum_stretch"
// grid   = ["cdiv(m, 64) * cdiv(n, 64)", "SPLIT"]
// block  = [128]
// args   = ["a", "b", "parts", "m", "n", "k"]
//
// [[launch]]
// kernel = "add_parts"
// grid   = ["cdiv(m * n, 32)"]
// block  = [32, 8]
// args   = ["parts", "out", "m * n"]
// ///
//
// A small output has few tiles. With one block per tile, most multiprocessors are idle, even if k is long. Here SPLIT
// blocks share a tile. Each block sums over its own range of k and stores partial sums in a workspace [SPLIT, m, n]; a
// second launch adds them. The order of all additions is fixed, so the result has the same bits every time, unlike with
// atomics. Limit: the partial sums are written and read once more, so this is faster only while SPLIT * (m * n) is
// small compared with k * (m + n). After "split K" in CUTLASS's efficient GEMM notes.

#define BM 64
#define BN 64
#define BK 16
#define TM 8
#define TN 4
#define THREADS (BM * BN / (TM * TN))
#define A_PASSES (BM * BK / (4 * THREADS))  // float4 per thread and tile
#define B_PASSES (BK * BN / (4 * THREADS))

// Return four neighbours of x [rows, cols] from (row, col), col a multiple of 4; zeros from column `end` on. `aligned`:
// cols and end are multiples of 4, so that the four are all inside or all outside, and 16-byte aligned.
__device__ __forceinline__ float4 load4(const float* __restrict__ x, int row, int col, int rows, int cols, int end,
                                        bool aligned) {
    const float* p = x + (size_t)row * cols + col;
    const int left = row < rows ? end - col : 0;
    if (aligned) return left > 0 ? *reinterpret_cast<const float4*>(p) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return make_float4(left > 0 ? p[0] : 0.0f, left > 1 ? p[1] : 0.0f, left > 2 ? p[2] : 0.0f, left > 3 ? p[3] : 0.0f);
}

// a [m, k], b [k, n], parts [SPLIT, m, n]; block (tile, part) computes BM x BN partial sums over its range of k.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_stretch(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ parts, int m, int n,
                int k) {
    static_assert(THREADS == 128, "as launched");
    __shared__ __align__(16) float a_tile[BK][BM + 4];  // transposed: [k][row]
    __shared__ __align__(16) float b_tile[BK][BN];
    const int tiles_n = (n + BN - 1) / BN;
    const int row0 = blockIdx.x / tiles_n * BM, col0 = blockIdx.x % tiles_n * BN;
    // Each part has whole tiles of k, so that each part starts aligned, and each part but the last ends aligned.
    const int tiles_k = (k + BK - 1) / BK;
    const int begin = (int)((long long)tiles_k * blockIdx.y / SPLIT) * BK;
    const int end = min(k, (int)((long long)tiles_k * (blockIdx.y + 1) / SPLIT) * BK);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int y = lane / 4 * 4, x = (lane % 4 + warp * 4) * 4;  // rows y and y + 32, four each; four columns from x
    const bool a_aligned = k % 4 == 0, b_aligned = n % 4 == 0;
    alignas(16) float sum[TM][TN] = {};
    float4 a_next[A_PASSES], b_next[B_PASSES];
    const auto fetch = [&](int base) {
#pragma unroll
        for (int p = 0; p < A_PASSES; ++p) {
            const int i = (threadIdx.x + p * THREADS) * 4;
            a_next[p] = load4(a, row0 + i / BK, base + i % BK, m, k, end, a_aligned);
        }
#pragma unroll
        for (int p = 0; p < B_PASSES; ++p) {
            const int i = (threadIdx.x + p * THREADS) * 4;
            b_next[p] = load4(b, base + i / BN, col0 + i % BN, end, n, n, b_aligned);
        }
    };
    fetch(begin);
    for (int base = begin; base < end; base += BK) {
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
        if (base + BK < end) fetch(base + BK);  // the loads are in flight while this tile is multiplied
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            alignas(16) float a_part[TM], b_part[TN];
#pragma unroll
            for (int r = 0; r < TM; r += 4)
                *reinterpret_cast<float4*>(&a_part[r]) =
                    *reinterpret_cast<const float4*>(&a_tile[i][y + r * (BM / TM)]);
            *reinterpret_cast<float4*>(b_part) = *reinterpret_cast<const float4*>(&b_tile[i][x]);
#pragma unroll
            for (int r = 0; r < TM; ++r)
#pragma unroll
                for (int c = 0; c < TN; ++c) sum[r][c] += a_part[r] * b_part[c];
        }
        __syncthreads();
    }
    float* part = parts + (size_t)blockIdx.y * m * n;  // a part with an empty range of k stores zeros
#pragma unroll
    for (int r = 0; r < TM; ++r) {
        const int row = row0 + y + r / 4 * (BM / 2) + r % 4;
        if (row >= m) continue;
        float* p = part + (size_t)row * n + col0 + x;
        if (b_aligned) {
            if (col0 + x < n) *reinterpret_cast<float4*>(p) = *reinterpret_cast<const float4*>(&sum[r][0]);
        } else {
#pragma unroll
            for (int c = 0; c < TN; ++c)
                if (col0 + x + c < n) p[c] = sum[r][c];
        }
    }
}

// parts [SPLIT, count], out [count]; block (32, 8): each of 8 threads adds every eighth part, then a tree adds their
// sums.
extern "C" __global__ void __launch_bounds__(256)
    add_parts(const float* __restrict__ parts, float* __restrict__ out, int count) {
    __shared__ float sums[8][32];
    const int i = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    if (i < count) {
#pragma unroll 8
        for (int s = threadIdx.y; s < SPLIT; s += 8) sum += parts[(size_t)s * count + i];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    for (int half = 4; half > 0; half /= 2) {
        if (threadIdx.y < half) sums[threadIdx.y][threadIdx.x] += sums[threadIdx.y + half][threadIdx.x];
        __syncthreads();
    }
    if (threadIdx.y == 0 && i < count) out[i] = sums[0][threadIdx.x];
}
