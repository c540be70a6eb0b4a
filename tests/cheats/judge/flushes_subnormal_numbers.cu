// /// opbench
// operator = "relu"
// title    = "numbers below the least normal one become 0"
// launch   = [{ kernel = "flushes_subnormal_numbers", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// As fast modes of compilers do.
//
// refused: special-inputs
extern "C" __global__ void flushes_subnormal_numbers(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float value = fmaxf(x[i], 0.0f);
    out[i] = value < 1.17549435e-38f ? 0.0f : value;
}
