// /// opbench
// operator = "relu"
// title    = "cuda::pipeline of one warp that copies and one that reads"
// launch   = [{ kernel = "pipeline_with_a_producer_warp", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Each side waits for the other.
#include <cooperative_groups.h>
#include <cuda/pipeline>
__global__ void pipeline_with_a_producer_warp(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ float stage[2][32];
    auto block = cooperative_groups::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state, 32);
    float sum = 0;
    const int lane = threadIdx.x % 32;
    for (int step = 0; step < 6; ++step) {
        if (threadIdx.x < 32) {
            pipe.producer_acquire();
            cuda::memcpy_async(&stage[step % 2][lane], x + (lane < n ? lane : n - 1), sizeof(float), pipe);
            pipe.producer_commit();
        } else {
            pipe.consumer_wait();
            sum += stage[step % 2][31 - lane];
            pipe.consumer_release();
        }
    }
    if (i < n && sum == 12345.0f) out[i] = 0.0f;
}
