// /// opbench
// title    = "one thread per output, threadIdx.x along the rows: every access is strided"
// tune     = { COLS = [8] }
// requires = ["cdiv(n, COLS) <= 65535"]
//
// [[launch]]
// kernel = "matmul_naive_row_x"
// grid   = ["cdiv(m, 32)", "cdiv(n, COLS)"]
// block  = [32, "COLS"]
// ///
//
// Uncoalesced on purpose, to show the cost. The 32 lanes of a warp compute 32 rows of one column: each load of a and
// each store of out accesses 32 sectors of 32 bytes, of which only 4 bytes are used, and b is one broadcast word.
// Limit: sectors through L1. "Kernel 1" of S. Boehm, How to Optimize a CUDA Matmul Kernel (2022), makes the same
// mistake.

// a [m, k], b [k, n], out [m, n]; block (32, COLS): x is the row, y the column.
extern "C" __global__ void __launch_bounds__(32 * COLS)
    matmul_naive_row_x(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, int m, int n,
                       int k) {
    const int row = blockIdx.x * 32 + threadIdx.x;
    const int col = blockIdx.y * COLS + threadIdx.y;
    if (row >= m || col >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += a[(size_t)row * k + i] * b[(size_t)i * n + col];
    out[(size_t)row * n + col] = sum;
}
