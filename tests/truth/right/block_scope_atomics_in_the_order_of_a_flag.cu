// /// opbench
// operator = "relu"
// title    = "block-scope atomics of two blocks that a flag orders"
// launch   = [{ kernel = "block_scope_atomics_in_the_order_of_a_flag", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The scopes do not hold the other block, but the first block's fence and the flag order all four operations.
__device__ int flag, data;
__global__ void block_scope_atomics_in_the_order_of_a_flag(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x % 32 || blockIdx.x > 1) return;
    const int turn = 2 * blockIdx.x + threadIdx.x / 32;
    while (atomicAdd(&flag, 0) != turn) {}
    if (turn % 2) {
        atomicExch(&data, turn);
        __threadfence();
    } else {
        atomicExch_block(&data, turn);
        __threadfence_block();
    }
    atomicExch(&flag, (turn + 1) % 4);
}
