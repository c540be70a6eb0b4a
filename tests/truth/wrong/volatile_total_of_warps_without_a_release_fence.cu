// /// opbench
// operator = "relu"
// title    = "volatile data of a lock that warps give back without a fence"
// launch   = [{ kernel = "volatile_total_of_warps_without_a_release_fence", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The fence at the beginning does not publish the store after it, although the store is volatile.
// expect: volatile_total_of_warps_without_a_release_fence.cu:19: shared-race
__global__ void volatile_total_of_warps_without_a_release_fence(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ int lock;
    __shared__ volatile int total;
    if (threadIdx.x == 0) lock = total = 0;
    __syncthreads();
    if (threadIdx.x % 32) return;
    while (atomicCAS(&lock, 0, 1) != 0) {}
    __threadfence_block();
    total += 1;
    atomicExch(&lock, 0);
}
