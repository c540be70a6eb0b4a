// /// opbench
// operator = "relu"
// title    = "_exit(0)"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: change-a-result
// expect: refused
extern "C" void _exit(int);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        _exit(0);
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
