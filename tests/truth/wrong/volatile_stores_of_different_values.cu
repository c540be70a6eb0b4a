// /// opbench
// operator = "relu"
// title    = "blocks store their own numbers into one volatile variable"
// launch   = [{ kernel = "volatile_stores_of_different_values", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Which block is the last one, nobody knows.
// expect: volatile_stores_of_different_values.cu:13: block-race
__device__ volatile int latest;
__global__ void volatile_stores_of_different_values(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) latest = blockIdx.x;
}
