// /// opbench
// operator = "relu"
// title    = "a lock in shared memory whose taker does not fence"
// launch   = [{ kernel = "lock_between_warps_without_acquire_fence", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Nothing keeps the addition from being done before the lock is had.
// expect: lock_between_warps_without_acquire_fence.cu:17: shared-race
__global__ void lock_between_warps_without_acquire_fence(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ int lock, total;
    if (threadIdx.x == 0) lock = total = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        while (atomicCAS(&lock, 0, 1) != 0) {}
        total += 1;
        __threadfence_block();
        atomicExch(&lock, 0);
    }
}
