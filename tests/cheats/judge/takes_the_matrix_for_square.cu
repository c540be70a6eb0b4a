// /// opbench
// operator = "transpose"
// title    = "rows are taken for columns"
// launch   = [{ kernel = "takes_the_matrix_for_square", grid = ["cdiv(rows * cols, 256)"], block = ["256"] }]
// ///
//
// Right for square matrices.
//
// refused: wrong-result
extern "C" __global__ void takes_the_matrix_for_square(const float* x, float* out, int rows, int cols) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= rows * cols) return;
    const int row = i / cols, column = i % cols;
    out[column * rows + row] = x[(row * rows + column) % (rows * cols)];
}
