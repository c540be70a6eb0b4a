// /// opbench
// operator = "relu"
// title    = "a message by relaxed operations, behind a release fence and before an acquire fence"
// launch   = [{ kernel = "message_by_fences_of_one_side", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// atomic_thread_fence of the order that each side needs.
#include <cuda/atomic>
__device__ int flag, message;
__device__ int taken[1024];
__global__ void message_by_fences_of_one_side(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    cuda::atomic_ref<int, cuda::thread_scope_device> ready(flag);
    if (threadIdx.x > 0) return;
    if (blockIdx.x == 0) {
        message = 7;
        cuda::atomic_thread_fence(cuda::memory_order_release, cuda::thread_scope_device);
        ready.store(1, cuda::memory_order_relaxed);
    } else if (ready.load(cuda::memory_order_relaxed)) {
        cuda::atomic_thread_fence(cuda::memory_order_acquire, cuda::thread_scope_device);
        taken[blockIdx.x % 1024] = message;
    }
}
