// /// opbench
// operator = "relu"
// title    = "all threads write and fence, then one raises the flag behind the barrier"
// launch   = [{ kernel = "all_fence_before_the_barrier", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Each fence published its own thread's write.
__device__ int ready;
__device__ int message[64];
__device__ int taken[1024];
__global__ void all_fence_before_the_barrier(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (blockIdx.x == 0) {
        message[threadIdx.x] = 7;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) atomicExch(&ready, 1);
    } else if (threadIdx.x == 0 && atomicAdd(&ready, 0)) {
        __threadfence();
        taken[blockIdx.x % 1024] = message[0] + message[63];
    }
}
