// /// opbench
// operator = "relu"
// title    = "whole numbers only"
// launch   = [{ kernel = "drops_the_fraction", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Right on small whole numbers.
//
// refused: wrong-result
extern "C" __global__ void drops_the_fraction(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = truncf(fmaxf(x[i], 0.0f));
}
