// /// opbench
// operator = "relu"
// title    = "blocks of a cooperative launch meet by an atomic counter and fences"
// launch   = [{ kernel = "cooperative_with_a_barrier_of_its_own", grid = ["cdiv(n, 64)"], block = ["64"], cooperative = true }]
// ///
//
// A hand-written grid barrier.
__device__ unsigned arrived;
__device__ int phase;
__device__ int slot[256];
__global__ void cooperative_with_a_barrier_of_its_own(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) slot[blockIdx.x] = blockIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) {
        const int before = *(volatile int*)&phase;
        __threadfence();
        if (atomicAdd(&arrived, 1u) == gridDim.x - 1) {
            arrived = 0;
            __threadfence();
            atomicAdd(&phase, 1);
        } else {
            while (*(volatile int*)&phase == before) {}
        }
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const int neighbour = (blockIdx.x + 1) % gridDim.x;
        if (slot[neighbour] != neighbour) out[0] = -1.0f;
    }
}
