// /// opbench
// operator = "transpose"
// title    = "guards the store with row < cols && col < rows"
// launch   = [{ kernel = "swaps_rows_and_columns_in_its_guard", grid = ["cdiv(cols, 16)", "cdiv(rows, 16)"], block = ["16", "16"] }]
// ///
//
// Right for square matrices only: of others some is read from outside and some never written.
// expect: swaps_rows_and_columns_in_its_guard.cu:11: out-of-bounds: read of 4 bytes|unwritten-output
extern "C" __global__ void swaps_rows_and_columns_in_its_guard(const float* x, float* out, int rows, int cols) {
    const int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row < cols && col < rows) out[col * rows + row] = x[row * cols + col];
}
