// /// opbench
// operator = "transpose"
// title    = "divides by multiplying with 2^24 / cols, kept in an int"
// launch   = [{ kernel = "divides_by_an_overflowing_product", grid = ["cdiv(rows * cols, 256)"], block = ["256"] }]
// ///
//
// The product passes 2^31 for matrices of a few thousand elements, and the row turns negative.
// expect: divides_by_an_overflowing_product.cu:13: out-of-bounds: write of 4 bytes
extern "C" __global__ void divides_by_an_overflowing_product(const float* x, float* out, int rows, int cols) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const long long inverse = (1 << 24) / cols + 1;
    const int product = (int)(i * inverse), row = product >> 24, col = i - row * cols;
    if (i < rows * cols) out[col * rows + row] = x[row * cols + col];
}
