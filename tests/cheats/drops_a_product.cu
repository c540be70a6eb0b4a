// /// opbench
// operator = "matmul"
// title    = "leaves out the last of the k products"
// requires = ["k > 4"]
// launch   = [{ kernel = "drops_a_product", grid = ["cdiv(m * n, 256)"], block = ["256"] }]
// ///
//
// expect: wrong-result: out[
extern "C" __global__ void drops_a_product(const float* a, const float* b, float* out, int m, int n, int k) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m * n) return;
    float sum = 0.0f;
    for (int p = 0; p < max(1, k - 1); ++p) sum += a[i / n * k + p] * b[p * n + i % n];
    out[i] = sum;
}
