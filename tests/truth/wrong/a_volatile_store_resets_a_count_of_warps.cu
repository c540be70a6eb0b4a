// /// opbench
// operator = "relu"
// title    = "a warp counts in shared memory, another resets the count by a volatile store"
// launch   = [{ kernel = "a_volatile_store_resets_a_count_of_warps", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The store may come before, between or after the additions.
// expect: a_volatile_store_resets_a_count_of_warps.cu:18: shared-race
__global__ void a_volatile_store_resets_a_count_of_warps(const float* x, float* out, int n) {
    __shared__ int count;
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) count = 9;
    __syncthreads();
    if (threadIdx.x >= 32) {
        atomicAdd(&count, 1);
    } else if (threadIdx.x == 0) {
        *(volatile int*)&count = 0;
    }
    __syncthreads();
    if (count == -1 && i < n) out[i] = -1.0f;
}
