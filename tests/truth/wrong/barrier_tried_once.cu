// /// opbench
// operator = "relu"
// title    = "cuda::barrier, one try_wait whose answer nobody reads"
// launch   = [{ kernel = "barrier_tried_once", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// try_wait may return false; it should be asked again until it is true.
// expect: barrier_tried_once.cu:19: uninitialised-shared|shared-race
#include <cuda/barrier>
__global__ void barrier_tried_once(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ int part[64];
    if (threadIdx.x == 0) init(&bar, 64);
    __syncthreads();
    part[threadIdx.x] = threadIdx.x;
    bar.try_wait(bar.arrive());
    if (part[63 - threadIdx.x] == 12345 && i < n) out[i] = 0.0f;
}
