// /// opbench
// operator = "relu"
// title    = "asks for 2048 threads a block"
// launch   = [{ kernel = "block_too_large", grid = ["cdiv(n, 2048)"], block = ["2048"] }]
// ///
//
// expect: block_too_large: a block of 2048 threads is too large; use at most 1024
extern "C" __global__ void block_too_large(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
