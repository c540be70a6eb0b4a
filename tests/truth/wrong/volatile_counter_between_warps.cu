// /// opbench
// operator = "relu"
// title    = "a volatile counter that two warps add to"
// launch   = [{ kernel = "volatile_counter_between_warps", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Two warps may read the same count.
// expect: volatile_counter_between_warps.cu:15: shared-race
__global__ void volatile_counter_between_warps(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ volatile int total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) total += 1;
}
