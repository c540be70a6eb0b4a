// /// opbench
// operator = "relu"
// title    = "warps take a lock by atomicExch(&lock, 1) and give it back by a volatile store"
// launch   = [{ kernel = "a_lock_by_exchange_is_given_back_by_a_store", grid = ["cdiv(n, 128)"], block = ["128"] }]
// ///
//
// Warps that wait write 1 over 1, which changes nothing, so the store of the owner is the only change.
__global__ void a_lock_by_exchange_is_given_back_by_a_store(const float* x, float* out, int n) {
    __shared__ int lock, total;
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) lock = total = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        while (atomicExch(&lock, 1) == 1) {}
        __threadfence_block();
        total += 1;
        __threadfence_block();
        *(volatile int*)&lock = 0;
    }
    __syncthreads();
    if (total != 4 && i < n) out[i] = -1.0f;
}
