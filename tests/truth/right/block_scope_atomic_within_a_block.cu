// /// opbench
// operator = "relu"
// title    = "atomicAdd_block on a counter that each block has for itself"
// launch   = [{ kernel = "block_scope_atomic_within_a_block", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// All who add are threads of one block.
__device__ int total[1024];
__global__ void block_scope_atomic_within_a_block(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) total[blockIdx.x] = 0;
    __syncthreads();
    atomicAdd_block(&total[blockIdx.x], 1);
    __syncthreads();
    if (i < n && total[blockIdx.x] != 64) out[i] = -1.0f;
}
