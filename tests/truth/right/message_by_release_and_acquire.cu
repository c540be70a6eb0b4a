// /// opbench
// operator = "relu"
// title    = "a message published by a release and read behind an acquire"
// launch   = [{ kernel = "message_by_release_and_acquire", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// No fence is needed.
#include <cuda/atomic>
__device__ int flag, message;
__device__ int taken[1024];
__global__ void message_by_release_and_acquire(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    cuda::atomic_ref<int, cuda::thread_scope_device> ready(flag);
    if (threadIdx.x > 0) return;
    if (blockIdx.x == 0) {
        message = 7;
        ready.store(1, cuda::memory_order_release);
    } else if (ready.load(cuda::memory_order_acquire)) {
        taken[blockIdx.x % 1024] = message;
    }
}
