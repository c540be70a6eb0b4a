// /// opbench
// operator = "sum"
// workspace = { partial = "cdiv(n, 512)", arrived = "1" }
// launch = [
//   { zero = "arrived" },
//   { kernel = "sum_blocks", grid = ["cdiv(n, 512)"], block = ["128"], args = ["x", "out", "partial", "arrived", "n"] },
// ]
// ///
#include <cooperative_groups.h>

#include <utility>

#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
using block_barrier = cuda::barrier<cuda::thread_scope_block>;
__global__ void sum_blocks(const float* x, float* out, float* partial, unsigned* arrived, int n) {
    __shared__ float stage[2][256];
    __shared__ float sums[128];
    __shared__ bool last;
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ block_barrier bar;
    auto block = cooperative_groups::this_thread_block();
    if (threadIdx.x == 0) init(&bar, blockDim.x);
    block.sync();
    auto pipe = cuda::make_pipeline();
    const int first = blockIdx.x * 512;
    for (int half = 0; half < 2; ++half) {
        for (int i = threadIdx.x; i < 256; i += 128) {
            const int at = first + half * 256 + i;
            if (at < n) {
                cuda::memcpy_async(&stage[half][i], &x[at], sizeof(float), pipe);
            } else {
                stage[half][i] = 0.0f;
            }
        }
        pipe.producer_commit();
    }
    float own = 0.0f;
    for (int half = 0; half < 2; ++half) {
        pipe.consumer_wait();
        own += stage[half][threadIdx.x] + stage[half][threadIdx.x + 128];
        pipe.consumer_release();
    }
    sums[threadIdx.x] = own;
    auto token = bar.arrive();
    bar.wait(std::move(token));
    if (threadIdx.x == 0) {
        float all = 0.0f;
        for (int i = 0; i < 128; ++i) all += sums[i];
        partial[blockIdx.x] = all;
        cuda::atomic_ref<unsigned, cuda::thread_scope_device> count(*arrived);
        last = count.fetch_add(1, cuda::memory_order_acq_rel) == gridDim.x - 1;
    }
    bar.arrive_and_wait();
    if (last && threadIdx.x == 0) {
        float all = 0.0f;
        for (int b = 0; b < gridDim.x; ++b) all += partial[b];
        out[0] = all;
    }
}
