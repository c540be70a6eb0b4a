// /// opbench
// operator = "relu"
// title    = "no output above 1000"
// launch   = [{ kernel = "clamps_at_a_thousand", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Normal numbers are small.
//
// refused: special-inputs
extern "C" __global__ void clamps_at_a_thousand(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = fminf(fmaxf(x[i], 0.0f), 1000.0f);
}
