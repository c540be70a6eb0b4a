// /// opbench
// operator = "relu"
// title    = "blocks of a cooperative launch meet by an atomic counter without fences"
// launch   = [{ kernel = "cooperative_barrier_without_a_fence", grid = ["cdiv(n, 64)"], block = ["64"], cooperative = true }]
// ///
//
// The count may be seen before the numbers.
// expect: cooperative_barrier_without_a_fence.cu:23: block-race
__device__ unsigned arrived;
__device__ int slot[256];
__global__ void cooperative_barrier_without_a_fence(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) slot[blockIdx.x] = blockIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned goal = (atomicAdd(&arrived, 1u) / gridDim.x + 1) * gridDim.x;
        while (*(volatile unsigned*)&arrived < goal) {}
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const int neighbour = (blockIdx.x + 1) % gridDim.x;
        if (slot[neighbour] != neighbour) out[0] = -1.0f;
    }
}
