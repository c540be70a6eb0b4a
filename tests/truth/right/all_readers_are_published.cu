// /// opbench
// operator = "relu"
// title    = "five blocks: all four reads are published before the write"
// launch   = [{ kernel = "all_readers_are_published", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Block 4 has seen all four counts.
__device__ int count, data;
__device__ int seen[4];
__global__ void all_readers_are_published(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x > 0) return;
    if (blockIdx.x < 4) {
        seen[blockIdx.x] = data;
        __threadfence();
        atomicAdd(&count, 1);
    } else if (blockIdx.x == 4) {
        while (atomicAdd(&count, 0) < 4) {}
        __threadfence();
        data = 5;
    }
}
