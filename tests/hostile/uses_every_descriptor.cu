// /// opbench
// operator = "relu"
// title    = "dup without end"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: crash-the-judge
// expect: refused
extern "C" int dup(int);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        for (int k = 0; k < 100000; ++k) dup(0);
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
