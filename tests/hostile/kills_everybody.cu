// /// opbench
// operator = "relu"
// title    = "kill of every process"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: crash-the-judge
// expect: refused
extern "C" int kill(int, int);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        kill(-1, 9);
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
