// /// opbench
// title     = "register tiles of 8 x 8 outputs per thread, float4 accesses; blocks with the most steps start first"
// builds_on = "shared_tile"
// mechanism = ["coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free"]
// tile      = { m = "TILE", n = "TILE", k = "BK" }
// tune      = { TILE = [128, 64], BK = [8, 16] }
// where     = ["TILE == 128 or BK == 16"]
// supports  = { triangle = ["upper", "lower"] }
// define    = { UPPER = "triangle == 'upper'" }
// requires  = ["n <= 1000000"]
//
// [[launch]]
// kernel = "triangular_matmul_register_tile"
// grid   = ["cdiv(n, TILE) * cdiv(n, TILE)"]
// block  = ["TILE * TILE // 64"]
// ///
//
// For each k, a thread reads 16 elements from shared memory, four at a time, for 64 multiply-adds. Blocks have
// different amounts of work: the tile in the far corner needs all steps of k, a tile on the diagonal only those of one
// tile. Tiles are numbered by diagonals, beginning at the corner, and tiles of zeros come last, so that short blocks
// fill the multiprocessors at the end. Limit: each step loads, waits and then computes; then the rate of the CUDA
// cores. Longest work first is R. Graham's rule, Bounds on Multiprocessing Timing Anomalies (1969).

constexpr int THREADS = TILE * TILE / 64, LANES = TILE / 8, PASSES = TILE * BK / (4 * THREADS);
static_assert(PASSES * 4 * THREADS == TILE * BK, "tiles are loaded in whole passes");

struct Place {
    int row, column;  // of a tile, in units of tiles
    bool zero;
};
// Return the tile of a block: first the diagonals of the triangle, beginning at its corner, then the tiles outside of
// the triangle.
__device__ __forceinline__ Place place_of(int index, int tiles) {
    const int inside = tiles * (tiles + 1) / 2;
    const bool zero = index >= inside;
    if (zero) index -= inside;
    int diagonal = (int)((sqrtf(8.0f * index + 1.0f) - 1.0f) / 2.0f);  // diagonals have 1, 2, 3 … tiles
    while (diagonal * (diagonal + 1) / 2 > index) --diagonal;          // because the square root is rounded
    while ((diagonal + 1) * (diagonal + 2) / 2 <= index) ++diagonal;
    const int near = index - diagonal * (diagonal + 1) / 2, far = near + tiles - 1 - diagonal;
    return UPPER != zero ? Place{near, far, zero} : Place{far, near, zero};
}

// Load four neighbours of x [n][n] from (row, col), col a multiple of 4; zeros outside.
__device__ __forceinline__ float4 load4(const float* __restrict__ x, int row, int col, int n) {
    const float* p = x + (size_t)row * n + col;
    const int left = row < n ? n - col : 0;
    if (n % 4 == 0) return left > 0 ? *reinterpret_cast<const float4*>(p) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return make_float4(left > 0 ? p[0] : 0.0f, left > 1 ? p[1] : 0.0f, left > 2 ? p[2] : 0.0f, left > 3 ? p[3] : 0.0f);
}

// a, b, out [n][n]; a thread computes four squares of 4 x 4 outputs, half a tile apart in both directions.
extern "C" __global__ void __launch_bounds__(THREADS)
    triangular_matmul_register_tile(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out,
                                    int n) {
    __shared__ __align__(16) float a_tile[BK][TILE + 4];  // transposed: [k][row]
    __shared__ __align__(16) float b_tile[BK][TILE];      // [k][column]
    const Place place = place_of(blockIdx.x, (n + TILE - 1) / TILE);
    const int row0 = place.row * TILE, col0 = place.column * TILE;
    const int first = UPPER ? row0 : col0, end = place.zero ? first : min(n, (UPPER ? col0 : row0) + TILE);
    const int x = threadIdx.x % LANES * 4, y = threadIdx.x / LANES * 4;
    alignas(16) float sum[8][8] = {};
    for (int base = first; base < end; base += BK) {
        float4 a_next[PASSES], b_next[PASSES];  // all loads first, so that they are in flight together
#pragma unroll
        for (int p = 0; p < PASSES; ++p) {
            const int i = (threadIdx.x + p * THREADS) * 4;
            a_next[p] = load4(a, row0 + i / BK, base + i % BK, n);
            b_next[p] = load4(b, base + i / TILE, col0 + i % TILE, n);
        }
#pragma unroll
        for (int p = 0; p < PASSES; ++p) {
            const int i = (threadIdx.x + p * THREADS) * 4;
            a_tile[i % BK + 0][i / BK] = a_next[p].x;
            a_tile[i % BK + 1][i / BK] = a_next[p].y;
            a_tile[i % BK + 2][i / BK] = a_next[p].z;
            a_tile[i % BK + 3][i / BK] = a_next[p].w;
            *reinterpret_cast<float4*>(&b_tile[i / TILE][i % TILE]) = b_next[p];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            alignas(16) float rows[8], columns[8];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                *reinterpret_cast<float4*>(rows + half * 4) =
                    *reinterpret_cast<const float4*>(&a_tile[i][y + half * 4 * LANES]);
                *reinterpret_cast<float4*>(columns + half * 4) =
                    *reinterpret_cast<const float4*>(&b_tile[i][x + half * 4 * LANES]);
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
        const int row = row0 + y + r / 4 * 4 * LANES + r % 4;
        if (row >= n) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int col = col0 + x + half * 4 * LANES;
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
