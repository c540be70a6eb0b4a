// /// opbench
// operator = "relu"
// title    = "all threads of a block read the counter plainly to find the last block"
// launch   = [{ kernel = "counter_read_plainly_behind_a_barrier", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Two blocks may both read the full count.
// expect: counter_read_plainly_behind_a_barrier.cu:15: block-race
__device__ unsigned arrived, finished;
__global__ void counter_read_plainly_behind_a_barrier(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&arrived, 1);
    }
    __syncthreads();
    if (arrived == gridDim.x && threadIdx.x == 1) atomicAdd(&finished, 1);
}
