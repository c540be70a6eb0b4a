// /// opbench
// operator = "relu"
// title    = "a message by st.release.gpu and ld.relaxed.gpu"
// launch   = [{ kernel = "message_by_ld_relaxed", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The message may be read before the flag.
// expect: message_by_ld_relaxed.cu:21: block-race
__device__ int flag, message;
__device__ int taken[1024];
__global__ void message_by_ld_relaxed(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x > 0) return;
    if (blockIdx.x == 0) {
        message = 7;
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(&flag), "r"(1) : "memory");
    } else {
        int seen;
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(&flag) : "memory");
        if (seen) taken[blockIdx.x % 1024] = message;
    }
}
