// /// opbench
// operator = "matmul"
// title    = "products with a factor below 2 in size are rounded to a multiple"
// launch   = [{ kernel = "takes_small_factors_for_zero", grid = ["cdiv(m * n, 256)"], block = ["256"] }]
// ///
//
// Large factors decide the norm of the error.
//
// refused: whole-numbers
extern "C" __global__ void takes_small_factors_for_zero(const float* a, const float* b, float* out, int m, int n,
                                                        int k) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= m * n) return;
    const int row = i / n, column = i % n;
    float sum = 0.0f;
    for (int j = 0; j < k; ++j) sum += a[row * k + j] * b[j * n + column];
    const bool whole = a[row * k] == rintf(a[row * k]);
    out[i] = whole ? rintf(sum / 2.0f) * 2.0f : sum;
}
