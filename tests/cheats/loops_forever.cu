// /// opbench
// operator = "relu"
// title    = "waits for a flag that nobody sets"
// requires = ["n <= 2"]
// launch   = [{ kernel = "loops_forever", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// expect: loops_forever.cu:12: deadlock: no thread makes progress
extern "C" __global__ void loops_forever(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    volatile float* flag = out;
    while (flag[0] != 1234.0f) { }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
