// /// opbench
// title    = "matrix times vector: each thread computes the product of one row"
// requires = ["n == 1"]
// launch   = [{ kernel = "matVec", grid = ["cdiv(m, 256)"], block = ["256"], args = ["a", "b", "out", "m", "k"] }]
// ///
__global__ void matVec(const float* mat, const float* vec, float* out, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int i = 0; i < cols; i++) sum += mat[row * cols + i] * vec[i];
    out[row] = sum;
}
