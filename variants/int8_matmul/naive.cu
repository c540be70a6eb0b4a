// /// opbench
// title     = "one thread per output, threadIdx.x along the columns"
// mechanism = ["coalesced_stores", "no_division"]
// tune      = { ROWS = [8, 4] }
// requires  = ["cdiv(m, ROWS) <= 65535"]
//
// [[launch]]
// kernel = "int8_matmul_naive"
// grid   = ["cdiv(n, 32)", "cdiv(m, ROWS)"]
// block  = [32, "ROWS"]
// ///
//
// The first variant. The lanes of a warp compute neighbouring columns of out, so stores are coalesced. All lanes read
// the same byte of a, but each lane reads another row of b. Limit: two loads of a byte per multiply-add.

// a [m][k], b [n][k], out [m][n]
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    int8_matmul_naive(const signed char* __restrict__ a, const signed char* __restrict__ b, int* __restrict__ out,
                      int m, int n, int k) {
    const int row = blockIdx.y * ROWS + threadIdx.y;
    const int col = blockIdx.x * 32 + threadIdx.x;
    if (row >= m || col >= n) return;
    int sum = 0;
    for (int i = 0; i < k; ++i) sum += a[(size_t)row * k + i] * b[(size_t)col * k + i];
    out[(size_t)row * n + col] = sum;
}
