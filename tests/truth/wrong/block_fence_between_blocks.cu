// /// opbench
// operator = "relu"
// title    = "a message behind __threadfence_block() for another block"
// launch   = [{ kernel = "block_fence_between_blocks", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The fence orders for threads of the same block only.
// expect: block_fence_between_blocks.cu:21: block-race
__device__ int ready, message;
__device__ int taken[1024];
__global__ void block_fence_between_blocks(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x > 0) return;
    if (blockIdx.x == 0) {
        message = 7;
        __threadfence_block();
        atomicExch(&ready, 1);
    } else if (atomicAdd(&ready, 0)) {
        __threadfence();
        taken[blockIdx.x % 1024] = message;
    }
}
