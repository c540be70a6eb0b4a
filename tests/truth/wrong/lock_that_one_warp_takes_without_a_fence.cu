// /// opbench
// operator = "relu"
// title    = "a lock that only the first warp takes without a fence"
// launch   = [{ kernel = "lock_that_one_warp_takes_without_a_fence", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// If the first warp takes the lock last, nothing keeps its addition from being done before it has the lock.
// expect: lock_that_one_warp_takes_without_a_fence.cu:18: shared-race
__global__ void lock_that_one_warp_takes_without_a_fence(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ int lock, total;
    if (threadIdx.x == 0) lock = total = 0;
    __syncthreads();
    if (threadIdx.x % 32) return;
    while (atomicCAS(&lock, 0, 1) != 0) {}
    if (threadIdx.x) __threadfence_block();
    total += 1;
    __threadfence_block();
    atomicExch(&lock, 0);
}
