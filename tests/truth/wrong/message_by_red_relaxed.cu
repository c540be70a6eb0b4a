// /// opbench
// operator = "relu"
// title    = "a message by red.relaxed.gpu and ld.acquire.gpu"
// launch   = [{ kernel = "message_by_red_relaxed", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The count may be seen before the message.
// expect: message_by_red_relaxed.cu:21: block-race
__device__ int flag, message;
__device__ int taken[1024];
__global__ void message_by_red_relaxed(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x > 0) return;
    if (blockIdx.x == 0) {
        message = 7;
        asm volatile("red.relaxed.gpu.global.add.s32 [%0], %1;" ::"l"(&flag), "r"(1) : "memory");
    } else {
        int seen;
        asm volatile("ld.global.acquire.gpu.b32 %0, [%1];" : "=r"(seen) : "l"(&flag) : "memory");
        if (seen) taken[blockIdx.x % 1024] = message;
    }
}
