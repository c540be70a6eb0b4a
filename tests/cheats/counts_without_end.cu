// /// opbench
// operator = "relu"
// title    = "an odd counter that steps by two and never meets zero"
// requires = ["n <= 2"]
// launch   = [{ kernel = "counts_without_end", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// It waits for nobody, so that only the time limit tells it from slowness.
// expect: failed: stopped after
extern "C" __global__ void counts_without_end(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned own = 1;
    for (unsigned step = 1; step != 0; step += 2) own = own * 3 + step;
    if (i < n) out[i] = own == 7 ? 0.0f : fmaxf(x[i], 0.0f);
}
