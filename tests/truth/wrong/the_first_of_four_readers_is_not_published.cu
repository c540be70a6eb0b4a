// /// opbench
// operator = "relu"
// title    = "five blocks: three of four reads are published"
// launch   = [{ kernel = "the_first_of_four_readers_is_not_published", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Block 4 has seen the counts of blocks 1 to 3 only.
// expect: the_first_of_four_readers_is_not_published.cu:22: block-race
__device__ int count, data;
__device__ int seen[4];
__global__ void the_first_of_four_readers_is_not_published(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x > 0) return;
    if (blockIdx.x < 4) {
        seen[blockIdx.x] = data;
        __threadfence();
        if (blockIdx.x > 0) atomicAdd(&count, 1);
    } else if (blockIdx.x == 4) {
        while (atomicAdd(&count, 0) < 3) {}
        __threadfence();
        data = 5;
    }
}
