// /// opbench
// title     = "one thread per element: coalesced writes, reads with the stride of a row"
// builds_on = "naive_write_strided"
// mechanism = ["coalesced_stores"]
// tune      = { COLS = [4, 8, 16] }
// requires  = ["cdiv(cols, COLS) <= 65535"]
//
// [[launch]]
// kernel = "transpose_naive_read_strided"
// grid   = ["cdiv(rows, 32)", "cdiv(cols, COLS)"]
// block  = [32, "COLS"]
// ///
//
// The other choice: the lanes of a warp go along out, so writes are full lines, and each read accesses 32 sectors. This
// is usually the faster of the two: the unused part of a sector that was read stays in L1, where the block's other
// columns find it, but a partly written sector must be merged in L2. Limit: sectors read. After G. Ruetsch and P.
// Micikevicius, Optimizing Matrix Transpose in CUDA (2009).

// x [rows, cols], out [cols, rows]; block (32, COLS): x is the row of x, the column of out.
extern "C" __global__ void __launch_bounds__(32 * COLS)
    transpose_naive_read_strided(const float* __restrict__ x, float* __restrict__ out, int rows, int cols) {
    const int row = blockIdx.x * 32 + threadIdx.x;
    const int col = blockIdx.y * COLS + threadIdx.y;
    if (row < rows && col < cols) out[(size_t)col * rows + row] = x[(size_t)row * cols + col];
}
