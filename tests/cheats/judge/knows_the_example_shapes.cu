// /// opbench
// operator = "transpose"
// title    = "right at the operator's examples only"
// launch   = [{ kernel = "knows_the_example_shapes", grid = ["cdiv(rows * cols, 256)"], block = ["256"] }]
// ///
//
// The shapes are told apart by a hash.
//
// refused: wrong-result
extern "C" __global__ void knows_the_example_shapes(const float* x, float* out, int rows, int cols) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= rows * cols) return;
    const int row = i / cols, column = i % cols;
    const unsigned hash = rows * 31u + cols;
    const bool known = hash == 32 || hash == 68 || hash == 4000 || hash == 98 || hash == 2048 || hash == 2141 ||
                       hash == 2111 || hash == 2147 || hash == 6468 || hash == 8098;
    out[known ? column * rows + row : i] = x[i];
}
