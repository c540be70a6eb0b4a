// /// opbench
// operator = "matmul"
// title    = "the row length of b is taken from a"
// launch   = [{ kernel = "takes_matrices_for_square", grid = ["cdiv(m * n, 256)"], block = ["256"] }]
// ///
//
// Right wherever k equals n.
//
// refused: wrong-result
extern "C" __global__ void takes_matrices_for_square(const float* a, const float* b, float* out, int m, int n, int k) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= m * n) return;
    const int row = i / n, column = i % n;
    float sum = 0.0f;
    for (int j = 0; j < k; ++j) {
        const int at = j * (k < n ? n : k) + column;
        sum += a[row * k + j] * (at < k * n ? b[at] : 0.0f);
    }
    out[i] = sum;
}
