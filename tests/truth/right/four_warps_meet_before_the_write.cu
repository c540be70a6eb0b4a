// /// opbench
// operator = "relu"
// title    = "four warps read and meet at a named barrier before one writes"
// launch   = [{ kernel = "four_warps_meet_before_the_write", grid = ["cdiv(n, 128)"], block = ["128"] }]
// ///
//
// All have read.
__global__ void four_warps_meet_before_the_write(const float* x, float* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ int data;
    __shared__ int seen[4];
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) data = 1;
    __syncthreads();
    if (threadIdx.x % 32 == 0) seen[warp] = data;
    if (warp >= 0) asm volatile("bar.sync 1, 128;" ::: "memory");
    if (threadIdx.x == 96) data = 2;
}
