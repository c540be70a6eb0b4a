// /// opbench
// operator = "sum"
// title    = "threads add to a shared total under a lock, one after another"
// launch   = [{ kernel = "takes_a_lock_in_shared_memory", grid = ["1"], block = ["64"] }]
// ///
//
// Since Volta the lanes of a warp make progress each for itself, so a lock may be taken by one of them while others spin.
// Fences keep what is done under the lock inside of it.
extern "C" __global__ void takes_a_lock_in_shared_memory(const float* x, float* out, int n) {
    __shared__ int lock;
    __shared__ volatile float total;
    const int t = threadIdx.x;
    if (t == 0) lock = 0, total = 0.0f;
    __syncthreads();
    float own = 0.0f;
    for (int i = t; i < n; i += 64) own += x[i];
    while (atomicCAS(&lock, 0, 1) != 0) {}
    __threadfence_block();
    total = total + own;
    __threadfence_block();
    atomicExch(&lock, 0);
    __syncthreads();
    if (t == 0) out[0] = total;
}
