// /// opbench
// operator = "relu"
// title    = "cuda::atomic_ref of thread_scope_block where blocks share the counter"
// launch   = [{ kernel = "block_scope_atomic_ref_between_blocks", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The scope is the block: other blocks' additions may be lost.
// expect: block_scope_atomic_ref_between_blocks.cu:15: block-race
#include <cuda/atomic>
__device__ int total;
__global__ void block_scope_atomic_ref_between_blocks(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    cuda::atomic_ref<int, cuda::thread_scope_block> count(total);
    if (threadIdx.x == 0) count.fetch_add(1, cuda::memory_order_relaxed);
}
