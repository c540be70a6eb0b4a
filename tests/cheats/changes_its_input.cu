// /// opbench
// operator = "relu"
// title    = "works in place and copies"
// launch   = [{ kernel = "changes_its_input", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// expect: changed-input: the kernel changed its input x
extern "C" __global__ void changes_its_input(float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
