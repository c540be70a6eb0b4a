// /// opbench
// title     = "shared-memory tiles of both operands, TILE×TILE outputs per block"
// builds_on = "coalesced"
// mechanism = ["coalesced", "shared_memory_tile"]
// tune      = { TILE = [32, 16, 8] }
// requires  = ["cdiv(m, TILE) <= 65535"]
//
// [[launch]]
// kernel = "matmul_shared_tile"
// grid   = ["cdiv(n, TILE)", "cdiv(m, TILE)"]
// block  = ["TILE", "TILE"]
// ///
//
// The block uses each value that it loads from global memory TILE times, so global traffic falls by that factor. Limit:
// each multiply-add still needs a load of a and one of b from shared memory (the compiler can load four values of a at
// once). A multiprocessor serves one shared-memory request of a warp per cycle but can issue four multiply-adds, so at
// most a quarter of the arithmetic rate is reachable, however large the tile is. From the CUDA C++ Programming Guide,
// "Shared Memory".

// a [m, k], b [k, n], out [m, n]; block (TILE, TILE): x is the column, y the row.
extern "C" __global__ void __launch_bounds__(TILE* TILE)
    matmul_shared_tile(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, int m, int n,
                       int k) {
    __shared__ float a_tile[TILE][TILE];  // [row][k]
    __shared__ float b_tile[TILE][TILE];  // [k][column]
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * TILE + y;
    const int col = blockIdx.x * TILE + x;
    float sum = 0.0f;
    for (int base = 0; base < k; base += TILE) {
        // Zeros after the last row, column or k add nothing, so the inner loop needs no bounds checks.
        a_tile[y][x] = row < m && base + x < k ? a[(size_t)row * k + base + x] : 0.0f;
        b_tile[y][x] = col < n && base + y < k ? b[(size_t)(base + y) * n + col] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; ++i) sum += a_tile[y][i] * b_tile[i][x];
        __syncthreads();  // otherwise the next tile would overwrite data that slower warps still read
    }
    if (row < m && col < n) out[(size_t)row * n + col] = sum;
}
