// /// opbench
// operator = "relu"
// title    = "a lock that the first block takes with a fence of its block"
// launch   = [{ kernel = "lock_that_one_block_takes_with_a_block_fence", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// A fence of the block's scope acquires nothing from another block.
// expect: lock_that_one_block_takes_with_a_block_fence.cu:17: block-race
__device__ int lock, total;
__global__ void lock_that_one_block_takes_with_a_block_fence(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x) return;
    while (atomicCAS(&lock, 0, 1) != 0) {}
    if (blockIdx.x) __threadfence();
    else __threadfence_block();
    total += 1;
    __threadfence();
    atomicExch(&lock, 0);
}
