// /// opbench
// operator = "relu"
// title    = "three blocks: one read is published, another is not"
// launch   = [{ kernel = "one_of_two_readers_is_published", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Block 2 has seen the release of block 0 only.
// expect: one_of_two_readers_is_published.cu:23: block-race
__device__ int flag, data, seen0, seen1;
__global__ void one_of_two_readers_is_published(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x > 0) return;
    if (blockIdx.x == 0) {
        seen0 = data;
        __threadfence();
        atomicExch(&flag, 1);
    } else if (blockIdx.x == 1) {
        seen1 = data;
    } else if (blockIdx.x == 2) {
        while (atomicAdd(&flag, 0) != 1) {}
        __threadfence();
        data = 5;
    }
}
