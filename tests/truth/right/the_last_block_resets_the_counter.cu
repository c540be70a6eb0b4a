// /// opbench
// operator = "relu"
// title    = "the last block is found by what atomicAdd returns, and sets the counter to 0 by a plain store"
// launch   = [{ kernel = "the_last_block_resets_the_counter", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// It has seen all other additions.
__device__ unsigned arrived;
__device__ int finished;
__global__ void the_last_block_resets_the_counter(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(&arrived, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 1) {
        finished += 1;
        arrived = 0;
    }
}
