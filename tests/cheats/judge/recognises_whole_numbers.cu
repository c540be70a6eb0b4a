// /// opbench
// operator = "matmul"
// title    = "factors are cut to bf16 unless both are whole"
// launch   = [{ kernel = "recognises_whole_numbers", grid = ["cdiv(m * n, 256)"], block = ["256"] }]
// ///
//
// A test on whole numbers sees exact products.
//
// refused: wrong-result
extern "C" __global__ void recognises_whole_numbers(const float* a, const float* b, float* out, int m, int n, int k) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= m * n) return;
    const int row = i / n, column = i % n;
    float sum = 0.0f;
    for (int j = 0; j < k; ++j) {
        float p = a[row * k + j], q = b[j * n + column];
        if (p != rintf(p) || q != rintf(q)) {
            p = __uint_as_float(__float_as_uint(p) & 0xffff0000u);
            q = __uint_as_float(__float_as_uint(q) & 0xffff0000u);
        }
        sum += p * q;
    }
    out[i] = sum;
}
