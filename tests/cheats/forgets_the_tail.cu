// /// opbench
// operator = "relu"
// title    = "rounds the grid down"
// launch   = [{ kernel = "forgets_the_tail", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// expect: unwritten-output
extern "C" __global__ void forgets_the_tail(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n / 64 * 64) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
