// /// opbench
// operator = "relu"
// title    = "a volatile counter that blocks add to"
// launch   = [{ kernel = "volatile_counter_between_blocks", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Two blocks may read the same count: volatile is a hint to the compiler, not an atomic operation.
// expect: volatile_counter_between_blocks.cu:13: block-race
__device__ volatile int total;
__global__ void volatile_counter_between_blocks(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) total += 1;
}
