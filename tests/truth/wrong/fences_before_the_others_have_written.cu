// /// opbench
// operator = "relu"
// title    = "a thread fences and raises the flag while other threads of its block may still write"
// launch   = [{ kernel = "fences_before_the_others_have_written", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// No barrier stands between the writes and the fence.
// expect: fences_before_the_others_have_written.cu:23: block-race
__device__ int ready;
__device__ int message[64];
__device__ int taken[1024];
__global__ void fences_before_the_others_have_written(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (blockIdx.x == 0) {
        message[threadIdx.x] = 7;
        if (threadIdx.x == 63) {
            __threadfence();
            atomicExch(&ready, 1);
        }
    } else if (threadIdx.x == 0 && atomicAdd(&ready, 0)) {
        __threadfence();
        taken[blockIdx.x % 1024] = message[0];
    }
}
