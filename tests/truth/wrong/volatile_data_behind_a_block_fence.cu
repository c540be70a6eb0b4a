// /// opbench
// operator = "relu"
// title    = "volatile data of all blocks that the last block reads, behind __threadfence_block()"
// launch   = [{ kernel = "volatile_data_behind_a_block_fence", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The fence orders the data and the counter for threads of the same block only, and volatile orders nothing.
// expect: volatile_data_behind_a_block_fence.cu:20: block-race
__device__ unsigned count;
__device__ volatile float part[1024];
__global__ void volatile_data_behind_a_block_fence(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x > 0) return;
    part[blockIdx.x % 1024] = x[i];
    __threadfence_block();
    if (atomicAdd(&count, 1u) % gridDim.x != gridDim.x - 1) return;
    float sum = 0.0f;
    __threadfence();
    for (int block = 0; block < min(gridDim.x, 1024); ++block) sum += part[block];
    if (sum > 1e30f) out[i] = sum;
}
