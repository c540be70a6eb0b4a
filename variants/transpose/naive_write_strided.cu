// /// opbench
// title    = "one thread per element: coalesced reads, writes with the stride of a row"
// tune     = { ROWS = [4, 8, 16] }
// requires = ["cdiv(rows, ROWS) <= 65535"]
//
// [[launch]]
// kernel = "transpose_naive_write_strided"
// grid   = ["cdiv(cols, 32)", "cdiv(rows, ROWS)"]
// block  = [32, "ROWS"]
// ///
//
// A warp reads 128 contiguous bytes and writes them to 32 different rows of out: 32 sectors of 32 bytes, of which only
// 4 bytes are useful. L2 combines the writes to a sector only if the blocks that write its other bytes run soon enough.
// Limit: sectors written. After G. Ruetsch and P. Micikevicius, Optimizing Matrix Transpose in CUDA (2009).

// x [rows, cols], out [cols, rows]; block (32, ROWS): x is the column.
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    transpose_naive_write_strided(const float* __restrict__ x, float* __restrict__ out, int rows, int cols) {
    const int col = blockIdx.x * 32 + threadIdx.x;
    const int row = blockIdx.y * ROWS + threadIdx.y;
    if (row < rows && col < cols) out[(size_t)col * rows + row] = x[(size_t)row * cols + col];
}
