// /// opbench
// title     = "shared-memory tiles of both operands, TILE x TILE outputs per block; tiles of zeros are skipped"
// builds_on = "naive"
// mechanism = ["coalesced", "shared_memory_tile"]
// tile      = { m = "TILE", n = "TILE", k = "TILE" }
// tune      = { TILE = [32, 16, 8] }
// supports  = { triangle = ["upper", "lower"] }
// define    = { UPPER = "triangle == 'upper'" }
// requires  = ["cdiv(n, TILE) <= 65535"]
//
// [[launch]]
// kernel = "triangular_matmul_shared_tile"
// grid   = ["cdiv(n, TILE)", "cdiv(n, TILE)"]
// block  = ["TILE", "TILE"]
// ///
//
// Each loaded value is used TILE times. Only whole tiles are skipped: those of k before a block's rows or after its
// columns. A tile on the diagonal is loaded with its zeros, which add nothing, so threads need no bounds of their own.
// A block outside of the triangle has no step and writes zeros. Limit: each multiply-add needs a load of a and one of b
// from shared memory.

// a, b, out [n][n]
extern "C" __global__ void __launch_bounds__(TILE* TILE)
    triangular_matmul_shared_tile(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out,
                                  int n) {
    __shared__ float a_tile[TILE][TILE];  // [row][k]
    __shared__ float b_tile[TILE][TILE];  // [k][column]
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * TILE + y, col = blockIdx.x * TILE + x;
    const int first = UPPER ? blockIdx.y : blockIdx.x, last = UPPER ? blockIdx.x : blockIdx.y;  // tiles of k
    float sum = 0.0f;
    for (int base = first * TILE; base <= last * TILE; base += TILE) {
        a_tile[y][x] = row < n && base + x < n ? a[(size_t)row * n + base + x] : 0.0f;
        b_tile[y][x] = col < n && base + y < n ? b[(size_t)(base + y) * n + col] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; ++i) sum += a_tile[y][i] * b_tile[i][x];
        __syncthreads();  // otherwise the next tile would overwrite data that slower warps still read
    }
    if (row < n && col < n) out[(size_t)row * n + col] = sum;
}
