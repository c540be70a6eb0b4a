// /// opbench
// operator = "relu"
// title    = "a clock that is read"
// launch   = [{ kernel = "reads_the_clock", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Nothing depends on its value but a branch that is never taken.
//
// sign: clock-read
extern "C" __global__ void reads_the_clock(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    if (clock64() < 0) return;  // here
    out[i] = fmaxf(x[i], 0.0f);
}
