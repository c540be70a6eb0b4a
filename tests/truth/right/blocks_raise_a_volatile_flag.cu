// /// opbench
// operator = "relu"
// title    = "all blocks store 1 into one volatile flag"
// launch   = [{ kernel = "blocks_raise_a_volatile_flag", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Whoever is last, the same value is stored.
__device__ volatile int any;
__global__ void blocks_raise_a_volatile_flag(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) any = 1;
}
