// /// opbench
// operator = "relu"
// title    = "cuda::barrier, try_wait_for until it is true"
// launch   = [{ kernel = "barrier_tried_in_a_loop", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The phase is over then.
#include <cuda/barrier>
__global__ void barrier_tried_in_a_loop(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ int part[64];
    if (threadIdx.x == 0) init(&bar, 64);
    __syncthreads();
    part[threadIdx.x] = threadIdx.x;
    auto token = bar.arrive();
    while (!bar.try_wait(token)) {}
    if (part[63 - threadIdx.x] == 12345 && i < n) out[i] = 0.0f;
}
