// /// opbench
// operator = "relu"
// title    = "expects one argument more than the launch gives"
// launch   = [{ kernel = "wrong_argument_count", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// expect: failed|wrong
extern "C" __global__ void wrong_argument_count(const float* x, float* out, int n, int m) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n + 0 * m) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
