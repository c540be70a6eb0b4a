// /// opbench
// operator = "relu"
// title    = "a lock whose taker does not fence"
// launch   = [{ kernel = "lock_without_acquire_fence", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Nothing keeps the addition from being done before the lock is had.
// expect: lock_without_acquire_fence.cu:15: block-race
__device__ int lock, total;
__global__ void lock_without_acquire_fence(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) {
        while (atomicCAS(&lock, 0, 1) != 0) {}
        total += 1;
        __threadfence();
        atomicExch(&lock, 0);
    }
}
