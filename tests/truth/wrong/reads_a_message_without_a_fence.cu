// /// opbench
// operator = "relu"
// title    = "the reader of a volatile flag does not fence"
// launch   = [{ kernel = "reads_a_message_without_a_fence", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The message may be read before the flag.
// expect: reads_a_message_without_a_fence.cu:21: block-race
__device__ volatile int ready;
__device__ int message;
__device__ int taken[1024];
__global__ void reads_a_message_without_a_fence(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x > 0) return;
    if (blockIdx.x == 0) {
        message = 7;
        __threadfence();
        ready = 1;
    } else if (ready) {
        taken[blockIdx.x % 1024] = message;
    }
}
