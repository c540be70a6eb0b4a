// /// opbench
// title     = "one thread per output, threadIdx.x along the columns, one matrix of the batch per blockIdx.z"
// mechanism = ["coalesced_stores", "no_division"]
// tune      = { ROWS = [8, 4] }
// supports  = { a_order = ["row", "col"], b_order = ["row", "col"] }
// define    = { A_COLUMNS = "a_order == 'col'", B_COLUMNS = "b_order == 'col'" }
// requires  = ["cdiv(m, ROWS) <= 65535"]
//
// [[launch]]
// kernel = "batched_matmul_naive"
// grid   = ["cdiv(n, 32)", "cdiv(m, ROWS)", "min(batch, 65535)"]
// block  = [32, "ROWS"]
// ///
//
// The first variant. The lanes of a warp compute neighbouring columns of out: stores are coalesced, all lanes read the
// same word of a, and b is coalesced if it is stored by rows. If b is stored by columns, each lane reads another line.
// Limit: two loads per multiply-add.

// a [batch][m][k] or [batch][k][m] (A_COLUMNS), b [batch][k][n] or [batch][n][k] (B_COLUMNS), out [batch][m][n]
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    batched_matmul_naive(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, int batch,
                         int m, int n, int k) {
    const int row = blockIdx.y * ROWS + threadIdx.y;
    const int col = blockIdx.x * 32 + threadIdx.x;
    if (row >= m || col >= n) return;
    for (int matrix = blockIdx.z; matrix < batch; matrix += gridDim.z) {
        const float* a_matrix = a + (size_t)matrix * m * k;
        const float* b_matrix = b + (size_t)matrix * k * n;
        float sum = 0.0f;
        for (int i = 0; i < k; ++i)
            sum += a_matrix[A_COLUMNS ? (size_t)i * m + row : (size_t)row * k + i] *
                   b_matrix[B_COLUMNS ? (size_t)col * k + i : (size_t)i * n + col];
        out[((size_t)matrix * m + row) * n + col] = sum;
    }
}
