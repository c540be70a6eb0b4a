// /// opbench
// operator = "relu"
// title    = "a message published by an acquiring fetch_add"
// launch   = [{ kernel = "acquire_taken_for_release", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// An acquire publishes nothing: it should be a release.
// expect: acquire_taken_for_release.cu:21: block-race
#include <cuda/atomic>
__device__ int flag, message;
__device__ int taken[1024];
__global__ void acquire_taken_for_release(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    cuda::atomic_ref<int, cuda::thread_scope_device> ready(flag);
    if (threadIdx.x > 0) return;
    if (blockIdx.x == 0) {
        message = 7;
        ready.fetch_add(1, cuda::memory_order_acquire);
    } else if (ready.load(cuda::memory_order_acquire)) {
        taken[blockIdx.x % 1024] = message;
    }
}
