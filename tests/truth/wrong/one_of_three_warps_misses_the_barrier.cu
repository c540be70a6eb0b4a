// /// opbench
// operator = "relu"
// title    = "four warps read; three of them meet, and one of these writes"
// launch   = [{ kernel = "one_of_three_warps_misses_the_barrier", grid = ["cdiv(n, 128)"], block = ["128"] }]
// ///
//
// The first warp may still be reading.
// expect: one_of_three_warps_misses_the_barrier.cu:19: shared-race
__global__ void one_of_three_warps_misses_the_barrier(const float* x, float* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ int data;
    __shared__ int seen[4];
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) data = 1;
    __syncthreads();
    if (threadIdx.x % 32 == 0) seen[warp] = data;
    if (warp > 0) asm volatile("bar.sync 1, 96;" ::: "memory");
    if (threadIdx.x == 96) data = 2;
}
