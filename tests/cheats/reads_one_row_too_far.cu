// /// opbench
// operator = "matmul"
// title    = "off by one: p <= k"
// launch   = [{ kernel = "reads_one_row_too_far", grid = ["cdiv(m * n, 128)"], block = ["128"] }]
// ///
//
// Row k of b does not exist.
// expect: reads_one_row_too_far.cu:14: out-of-bounds: read of 4 bytes
extern "C" __global__ void reads_one_row_too_far(const float* a, const float* b, float* out, int m, int n, int k) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= m * n) return;
    float sum = 0.0f;
    for (int p = 0; p <= k; ++p)
        sum += a[i / n * k + p] * b[p * n + i % n];
    out[i] = sum;
}
