// /// opbench
// operator = "relu"
// title    = "cuda::pipeline of a block with two stages, each released"
// launch   = [{ kernel = "pipeline_of_two_stages", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// A stage is filled again when all have read it.
#include <cooperative_groups.h>
#include <cuda/pipeline>
__global__ void pipeline_of_two_stages(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ float stage[2][64];
    auto block = cooperative_groups::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    float sum = 0;
    for (int step = 0; step < 6; ++step) {
        pipe.producer_acquire();
        cuda::memcpy_async(&stage[step % 2][threadIdx.x], x + (i < n ? i : n - 1), sizeof(float), pipe);
        pipe.producer_commit();
        pipe.consumer_wait();
        sum += stage[step % 2][63 - threadIdx.x];
        pipe.consumer_release();
    }
    if (i < n && sum == 12345.0f) out[i] = 0.0f;
}
