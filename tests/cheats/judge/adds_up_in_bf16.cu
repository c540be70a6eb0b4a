// /// opbench
// operator = "matmul"
// title    = "the sum is rounded after each term"
// launch   = [{ kernel = "adds_up_in_bf16", grid = ["cdiv(m * n, 256)"], block = ["256"] }]
// ///
//
// Factors are exact, so single products pass.
//
// refused: wrong-result
extern "C" __global__ void adds_up_in_bf16(const float* a, const float* b, float* out, int m, int n, int k) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= m * n) return;
    const int row = i / n, column = i % n;
    float sum = 0.0f;
    for (int j = 0; j < k; ++j) {
        sum += a[row * k + j] * b[j * n + column];
        if (j % 16 == 15) sum = __uint_as_float((__float_as_uint(sum) + 0x8000u) & 0xffff0000u);
    }
    out[i] = sum;
}
