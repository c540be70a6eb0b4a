// /// opbench
// operator = "relu"
// title    = "the first section under a lock needs no acquire fence"
// launch   = [{ kernel = "fills_under_a_lock_before_a_flag", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// No other block takes the lock before the flag is set, so no section comes before the first.
__device__ int lock, total, ready, ended;
__global__ void fills_under_a_lock_before_a_flag(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x) return;
    if (blockIdx.x) {
        while (atomicAdd(&ready, 0) == 0) {}
        __threadfence();
    }
    while (atomicCAS(&lock, 0, 1) != 0) {}
    if (blockIdx.x) __threadfence();
    total += 1;
    __threadfence();
    atomicExch(&lock, 0);
    if (blockIdx.x == 0) {
        __threadfence();
        atomicExch(&ready, 1);
    }
    if (atomicAdd(&ended, 1) == gridDim.x - 1) {
        atomicExch(&ended, 0);
        atomicExch(&ready, 0);
    }
}
