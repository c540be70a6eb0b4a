// /// opbench
// title    = "column-major b: one thread per output, threadIdx.x along the columns"
// tune     = { ROWS = [4, 8, 32] }
// supports = { b_order = ["col"] }
// requires = ["cdiv(m, ROWS) <= 65535"]
//
// [[launch]]
// kernel = "matmul_naive_col"
// grid   = ["cdiv(n, 32)", "cdiv(m, ROWS)"]
// block  = [32, "ROWS"]
// ///
//
// The first variant for b stored [n, k]. The column stays on threadIdx.x so that out is written in full lines, but then
// neighbouring lanes read b a whole row of k apart: 32 sectors per load. The L1 cache reduces the cost, because the
// next seven steps of k use the same sectors. Limit: those sectors. Compare `coalesced`, which differs only in one
// index.

// a [m, k], b [n, k], out [m, n]; block (32, ROWS): x is the column, y the row.
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    matmul_naive_col(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, int m, int n,
                     int k) {
    const int col = blockIdx.x * 32 + threadIdx.x;
    const int row = blockIdx.y * ROWS + threadIdx.y;
    if (row >= m || col >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += a[(size_t)row * k + i] * b[(size_t)col * k + i];
    out[(size_t)row * n + col] = sum;
}
