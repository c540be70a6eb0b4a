// /// opbench
// title     = "one thread per output, which adds only the products inside both triangles"
// mechanism = ["coalesced_stores", "no_division"]
// tune      = { ROWS = [8, 4] }
// supports  = { triangle = ["upper", "lower"] }
// define    = { UPPER = "triangle == 'upper'" }
// requires  = ["cdiv(n, ROWS) <= 65535"]
//
// [[launch]]
// kernel = "triangular_matmul_naive"
// grid   = ["cdiv(n, 32)", "cdiv(n, ROWS)"]
// block  = [32, "ROWS"]
// ///
//
// The first variant. Of the n products of an output, only those between its row and its column differ from zero: on
// average a third, for outputs within the triangle. Lanes compute neighbouring columns, so b and out are coalesced.
// Limit: two loads for each multiply-add.

// a, b, out [n][n]
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    triangular_matmul_naive(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, int n) {
    const int col = blockIdx.x * 32 + threadIdx.x;
    const int row = blockIdx.y * ROWS + threadIdx.y;
    if (row >= n || col >= n) return;
    const int first = UPPER ? row : col, last = UPPER ? col : row;  // no products if first > last
    float sum = 0.0f;
    for (int i = first; i <= last; ++i) sum += a[(size_t)row * n + i] * b[(size_t)i * n + col];
    out[(size_t)row * n + col] = sum;
}
