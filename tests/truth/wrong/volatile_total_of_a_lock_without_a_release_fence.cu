// /// opbench
// operator = "relu"
// title    = "volatile data of a lock that is given back without a fence"
// launch   = [{ kernel = "volatile_total_of_a_lock_without_a_release_fence", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The fence at the beginning does not publish the store after it, although the store is volatile.
// expect: volatile_total_of_a_lock_without_a_release_fence.cu:17: block-race
__device__ int lock;
__device__ volatile int total;
__global__ void volatile_total_of_a_lock_without_a_release_fence(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x) return;
    while (atomicCAS(&lock, 0, 1) != 0) {}
    __threadfence();
    total += 1;
    atomicExch(&lock, 0);
}
