// /// opbench
// title     = "register tiles of 8 x 8 outputs per thread, float4 loads from global and shared memory"
// builds_on = "shared_tile"
// mechanism = ["coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free"]
// tile      = { m = "BM", n = "BN", k = "BK" }
// tune      = { BM = [128, 64], BN = [128, 64], BK = [16, 8] }
// where     = ["BM == BN", "BM == 128 or BK == 16"]
// supports  = { a_order = ["row", "col"], b_order = ["row", "col"] }
// define    = { A_COLUMNS = "a_order == 'col'", B_COLUMNS = "b_order == 'col'" }
// requires  = ["batch * cdiv(m, BM) * cdiv(n, BN) < 2 ** 31"]
//
// [[launch]]
// kernel = "batched_matmul_register_tile"
// grid   = ["batch * cdiv(m, BM) * cdiv(n, BN)"]
// block  = ["BM * BN // 64"]
// ///
//
// For each k, a thread reads 16 elements from shared memory, four at a time, for 64 multiply-adds. Both tiles are
// stored as [k][row or column] for these reads. An operand that is contiguous along k is transposed while it is stored,
// by four scalar stores, and a padding of 4 words reduces their bank conflicts; the other kind is stored as it was
// loaded. Limit: each step loads, waits and then computes; then the rate of the CUDA cores. After "kernel 6" of S.
// Boehm, How to Optimize a CUDA Matmul Kernel (2022).

constexpr int THREADS = BM * BN / 64, LANES_N = BN / 8, LANES_M = BM / 8;

// Load four neighbours of x [rows][cols] from (row, col), col a multiple of 4; zeros outside. `aligned`: cols is a
// multiple of 4, so that the four are all inside or all outside, and 16-byte aligned.
__device__ __forceinline__ float4 load4(const float* __restrict__ x, int row, int col, int rows, int cols,
                                        bool aligned) {
    const float* p = x + (size_t)row * cols + col;
    const int left = row < rows ? cols - col : 0;
    if (aligned) return left > 0 ? *reinterpret_cast<const float4*>(p) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return make_float4(left > 0 ? p[0] : 0.0f, left > 1 ? p[1] : 0.0f, left > 2 ? p[2] : 0.0f, left > 3 ? p[3] : 0.0f);
}

// The tile of one operand: x is [rows][depth], or [depth][rows] with by_depth.
template <int width, bool by_depth>
struct Operand {
    static constexpr int passes = width * BK / (4 * THREADS), row_quads = (by_depth ? width : BK) / 4;
    static_assert(passes * 4 * THREADS == width * BK, "a tile is loaded in whole passes");
    float4 next[passes];

    __device__ __forceinline__ void load(const float* __restrict__ x, int row0, int base, int rows, int depth) {
        const bool aligned = (by_depth ? rows : depth) % 4 == 0;
#pragma unroll
        for (int p = 0; p < passes; ++p) {
            const int i = threadIdx.x + p * THREADS, line = i / row_quads, at = i % row_quads * 4;
            next[p] = by_depth ? load4(x, base + line, row0 + at, depth, rows, aligned)
                               : load4(x, row0 + line, base + at, rows, depth, aligned);
        }
    }
    __device__ __forceinline__ void store(float (&tile)[BK][width + 4]) const {
#pragma unroll
        for (int p = 0; p < passes; ++p) {
            const int i = threadIdx.x + p * THREADS, line = i / row_quads, at = i % row_quads * 4;
            if (by_depth) {
                *reinterpret_cast<float4*>(&tile[line][at]) = next[p];
            } else {
                tile[at + 0][line] = next[p].x;
                tile[at + 1][line] = next[p].y;
                tile[at + 2][line] = next[p].z;
                tile[at + 3][line] = next[p].w;
            }
        }
    }
};

// a [batch][m][k] or [batch][k][m] (A_COLUMNS), b [batch][k][n] or [batch][n][k] (B_COLUMNS), out [batch][m][n]; a
// thread computes four squares of 4 x 4 outputs, half a tile apart in both directions.
extern "C" __global__ void __launch_bounds__(THREADS)
    batched_matmul_register_tile(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out,
                                 int batch, int m, int n, int k) {
    __shared__ __align__(16) float a_tile[BK][BM + 4], b_tile[BK][BN + 4];
    const int tiles_n = (n + BN - 1) / BN, tiles = (m + BM - 1) / BM * tiles_n;
    const int matrix = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    const int row0 = tile / tiles_n * BM, col0 = tile % tiles_n * BN;
    const int x = threadIdx.x % LANES_N * 4, y = threadIdx.x / LANES_N * 4;
    a += (size_t)matrix * m * k;
    b += (size_t)matrix * k * n;
    out += (size_t)matrix * m * n;
    Operand<BM, A_COLUMNS != 0> a_part;
    Operand<BN, B_COLUMNS == 0> b_part;
    alignas(16) float sum[8][8] = {};
    for (int base = 0; base < k; base += BK) {
        a_part.load(a, row0, base, m, k);
        b_part.load(b, col0, base, n, k);
        a_part.store(a_tile);
        b_part.store(b_tile);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            alignas(16) float rows[8], columns[8];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                *reinterpret_cast<float4*>(rows + half * 4) =
                    *reinterpret_cast<const float4*>(&a_tile[i][y + half * 4 * LANES_M]);
                *reinterpret_cast<float4*>(columns + half * 4) =
                    *reinterpret_cast<const float4*>(&b_tile[i][x + half * 4 * LANES_N]);
            }
#pragma unroll
            for (int r = 0; r < 8; ++r)
#pragma unroll
                for (int c = 0; c < 8; ++c) sum[r][c] += rows[r] * columns[c];
        }
        __syncthreads();  // otherwise the next tile would overwrite data that slower warps still read
    }
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        const int row = row0 + y + r / 4 * 4 * LANES_M + r % 4;
        if (row >= m) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int col = col0 + x + half * 4 * LANES_N;
            float* p = out + (size_t)row * n + col;
            if (n % 4 == 0) {
                if (col < n) *reinterpret_cast<float4*>(p) = *reinterpret_cast<const float4*>(&sum[r][half * 4]);
            } else {
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (col + j < n) p[j] = sum[r][half * 4 + j];
            }
        }
    }
}
