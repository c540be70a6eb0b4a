// /// opbench
// title     = "shared-memory tiles of both operands with coalesced loads, TILE x TILE outputs per block"
// builds_on = "naive"
// mechanism = ["coalesced", "shared_memory_tile", "bank_conflict_free"]
// tile      = { m = "TILE", n = "TILE", k = "TILE" }
// tune      = { TILE = [32, 16, 8] }
// supports  = { a_order = ["row", "col"], b_order = ["row", "col"] }
// define    = { A_COLUMNS = "a_order == 'col'", B_COLUMNS = "b_order == 'col'" }
// requires  = ["batch * cdiv(m, TILE) * cdiv(n, TILE) < 2 ** 31"]
//
// [[launch]]
// kernel = "batched_matmul_shared_tile"
// grid   = ["batch * cdiv(m, TILE) * cdiv(n, TILE)"]
// block  = ["TILE", "TILE"]
// ///
//
// Each loaded value is used TILE times. The threads of a warp load along the contiguous dimension of either order, and
// store the tile in the order of the products, so the loop is the same for all orders. A column of padding keeps
// transposed stores free of bank conflicts. Tiles of one matrix have consecutive block indices, so its operands stay in
// L2. Limit: each multiply-add needs a load of a and one of b from shared memory. From the CUDA C++ Programming Guide,
// "Shared Memory".

// a [batch][m][k] or [batch][k][m] (A_COLUMNS), b [batch][k][n] or [batch][n][k] (B_COLUMNS), out [batch][m][n]
extern "C" __global__ void __launch_bounds__(TILE* TILE)
    batched_matmul_shared_tile(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out,
                               int batch, int m, int n, int k) {
    __shared__ float a_tile[TILE][TILE + 1];  // [row][k]
    __shared__ float b_tile[TILE][TILE + 1];  // [k][column]
    const int tiles_n = (n + TILE - 1) / TILE, tiles = (m + TILE - 1) / TILE * tiles_n;
    const int matrix = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    const int row0 = tile / tiles_n * TILE, col0 = tile % tiles_n * TILE;
    const int x = threadIdx.x, y = threadIdx.y;
    a += (size_t)matrix * m * k;
    b += (size_t)matrix * k * n;
    float sum = 0.0f;
    for (int base = 0; base < k; base += TILE) {
        // Zeros after the last row, column or k add nothing, so the inner loop needs no bounds checks.
        if (A_COLUMNS)
            a_tile[x][y] = row0 + x < m && base + y < k ? a[(size_t)(base + y) * m + row0 + x] : 0.0f;
        else
            a_tile[y][x] = row0 + y < m && base + x < k ? a[(size_t)(row0 + y) * k + base + x] : 0.0f;
        if (B_COLUMNS)
            b_tile[x][y] = col0 + y < n && base + x < k ? b[(size_t)(col0 + y) * k + base + x] : 0.0f;
        else
            b_tile[y][x] = col0 + x < n && base + y < k ? b[(size_t)(base + y) * n + col0 + x] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; ++i) sum += a_tile[y][i] * b_tile[i][x];
        __syncthreads();  // otherwise the next tile would overwrite data that slower warps still read
    }
    if (row0 + y < m && col0 + x < n) out[((size_t)matrix * m + row0 + y) * n + col0 + x] = sum;
}
