// /// opbench
// operator = "relu"
// title    = "the honest twin"
// launch   = [{ kernel = "relu", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// One element a thread.
//
// expect: right
// problem: (n=65536)
extern "C" __global__ void relu(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
