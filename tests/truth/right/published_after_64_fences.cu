// /// opbench
// operator = "relu"
// title    = "a block fences 64 times, writes, fences again and raises a flag"
// launch   = [{ kernel = "published_after_64_fences", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The last fence publishes the write.
__device__ int flag, late, seen;
__global__ void published_after_64_fences(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x > 0) return;
    if (blockIdx.x == 0) {
        for (int k = 0; k < 64; ++k) __threadfence();
        late = 7;
        __threadfence();
        atomicExch(&flag, 1);
    } else if (blockIdx.x == 1) {
        while (atomicAdd(&flag, 0) != 1) {}
        __threadfence();
        seen = late;
    }
}
