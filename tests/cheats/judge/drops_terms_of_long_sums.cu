// /// opbench
// operator = "matmul"
// title    = "at most 96 terms of each sum"
// launch   = [{ kernel = "drops_terms_of_long_sums", grid = ["cdiv(m * n, 256)"], block = ["256"] }]
// ///
//
// The others are small against the sum of the first.
//
// refused: wrong-result
extern "C" __global__ void drops_terms_of_long_sums(const float* a, const float* b, float* out, int m, int n, int k) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= m * n) return;
    const int row = i / n, column = i % n;
    float sum = 0.0f;
    for (int j = 0; j < k && j < 96; ++j) sum += a[row * k + j] * b[j * n + column];
    out[i] = sum;
}
