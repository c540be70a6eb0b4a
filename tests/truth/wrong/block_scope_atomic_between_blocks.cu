// /// opbench
// operator = "relu"
// title    = "atomicAdd_block where blocks share the counter"
// launch   = [{ kernel = "block_scope_atomic_between_blocks", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The scope is the block: other blocks' additions may be lost.
// expect: block_scope_atomic_between_blocks.cu:13: block-race
__device__ int total;
__global__ void block_scope_atomic_between_blocks(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) atomicAdd_block(&total, 1);
}
