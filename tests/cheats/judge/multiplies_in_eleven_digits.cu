// /// opbench
// operator = "matmul"
// title    = "factors are cut to the digits of tf32"
// launch   = [{ kernel = "multiplies_in_eleven_digits", grid = ["cdiv(m * n, 256)"], block = ["256"] }]
// ///
//
// The header claims f32.
//
// refused: wrong-result
extern "C" __global__ void multiplies_in_eleven_digits(const float* a, const float* b, float* out, int m, int n,
                                                       int k) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= m * n) return;
    const int row = i / n, column = i % n;
    float sum = 0.0f;
    for (int j = 0; j < k; ++j) {
        const float p = __uint_as_float(__float_as_uint(a[row * k + j]) & 0xffffe000u);
        sum += p * __uint_as_float(__float_as_uint(b[j * n + column]) & 0xffffe000u);
    }
    out[i] = sum;
}
