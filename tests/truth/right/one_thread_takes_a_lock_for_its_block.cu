// /// opbench
// operator = "relu"
// title    = "a lock that one thread takes and gives back for its block"
// launch   = [{ kernel = "one_thread_takes_a_lock_for_its_block", grid = ["cdiv(n, 128)"], block = ["128"] }]
// ///
//
// The barrier after the lock acquires for the whole block, and fences before the second barrier publish.
__device__ int lock, table[128];
__global__ void one_thread_takes_a_lock_for_its_block(const float* x, float* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) {
        while (atomicCAS(&lock, 0, 1) != 0) {}
    }
    __syncthreads();
    table[threadIdx.x] += 1;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) atomicExch(&lock, 0);
}
