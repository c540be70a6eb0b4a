// /// opbench
// operator = "relu"
// title    = "a block that has fenced 64 times writes once more and tells nobody"
// launch   = [{ kernel = "written_after_64_fences", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The last write comes after the last release.
// expect: written_after_64_fences.cu:21: block-race
__device__ int flag, late, seen;
__global__ void written_after_64_fences(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x > 0) return;
    if (blockIdx.x == 0) {
        for (int k = 0; k < 64; ++k) __threadfence();
        atomicExch(&flag, 1);
        late = 7;
    } else if (blockIdx.x == 1) {
        while (atomicAdd(&flag, 0) != 1) {}
        __threadfence();
        seen = late;
    }
}
