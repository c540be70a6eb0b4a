// /// opbench
// operator = "relu"
// title    = "a block polls a volatile flag that another has set, with fences on both sides"
// launch   = [{ kernel = "a_volatile_flag_carries_a_message", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The flag comes after the data, and the data are read after the flag.
__device__ volatile int ready;
__device__ int message;
__device__ int taken[1024];
__global__ void a_volatile_flag_carries_a_message(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x > 0) return;
    if (blockIdx.x == 0) {
        message = 7;
        __threadfence();
        ready = 1;
    } else {
        while (ready == 0) {}
        __threadfence();
        taken[blockIdx.x % 1024] = message;
    }
}
