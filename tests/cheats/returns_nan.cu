// /// opbench
// operator = "relu"
// title    = "divides by zero"
// launch   = [{ kernel = "returns_nan", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// expect: not-finite
extern "C" __global__ void returns_nan(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (x[i] - x[i]) / (x[i] - x[i]);
}
