// /// opbench
// operator = "relu"
// title    = "a lock that only the first block takes without a fence"
// launch   = [{ kernel = "lock_that_one_block_takes_without_a_fence", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// If the first block takes the lock last, nothing keeps its addition from being done before it has the lock.
// expect: lock_that_one_block_takes_without_a_fence.cu:16: block-race
__device__ int lock, total;
__global__ void lock_that_one_block_takes_without_a_fence(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x) return;
    while (atomicCAS(&lock, 0, 1) != 0) {}
    if (blockIdx.x) __threadfence();
    total += 1;
    __threadfence();
    atomicExch(&lock, 0);
}
