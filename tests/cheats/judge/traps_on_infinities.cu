// /// opbench
// operator = "relu"
// title    = "stops at numbers that it does not know"
// launch   = [{ kernel = "traps_on_infinities", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A launch that fails is not a wrong result.
//
// refused: trap
extern "C" __global__ void traps_on_infinities(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    if (isinf(x[i])) __trap();
    out[i] = fmaxf(x[i], 0.0f);
}
