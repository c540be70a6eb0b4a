// /// opbench
// operator = "matmul"
// title    = "rounds the operands of every product"
// requires = ["k > 4"]
// launch   = [{ kernel = "multiplies_in_half", grid = ["cdiv(m * n, 256)"], block = ["256"] }]
// ///
//
// expect: wrong: 
__device__ float rounded(float v) { return __int_as_float((__float_as_int(v) + 0x1000) & ~0x1fff); }
extern "C" __global__ void multiplies_in_half(const float* a, const float* b, float* out, int m, int n, int k) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m * n) return;
    float sum = 0.0f;
    for (int p = 0; p < k; ++p) sum += rounded(a[i / n * k + p]) * rounded(b[p * n + i % n]);
    out[i] = sum;
}
