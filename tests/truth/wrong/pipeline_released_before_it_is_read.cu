// /// opbench
// operator = "relu"
// title    = "cuda::pipeline whose stage is released before it is read"
// launch   = [{ kernel = "pipeline_released_before_it_is_read", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The next copy may overwrite what is still to be read.
// expect: early-overwrite|shared-race
#include <cooperative_groups.h>
#include <cuda/pipeline>
__global__ void pipeline_released_before_it_is_read(const float* x, float* out, int n) {
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
            pipe.consumer_release();
            sum += stage[step % 2][31 - lane];
        }
    }
    if (i < n && sum == 12345.0f) out[i] = 0.0f;
}
