// /// opbench
// operator = "relu"
// title    = "blocks add to a total under a lock, with fences on both sides"
// launch   = [{ kernel = "blocks_take_a_lock", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The fences keep the addition inside.
__device__ int lock, total;
__global__ void blocks_take_a_lock(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) {
        while (atomicCAS(&lock, 0, 1) != 0) {}
        __threadfence();
        total += 1;
        __threadfence();
        atomicExch(&lock, 0);
    }
}
