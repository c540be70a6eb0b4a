// /// opbench
// operator = "copy"
// title    = "the same, asleep while it waits"
// launch   = [{ kernel = "a_warp_sleeps_until_another_has_filled", grid = ["cdiv(n, 32)"], block = ["64"] }]
// ///
//
// The flag is volatile and fenced on both sides, with __nanosleep() in the loop.
extern "C" __global__ void a_warp_sleeps_until_another_has_filled(const float* x, float* out, int n) {
    __shared__ float stage[32];
    __shared__ volatile int filled;
    if (threadIdx.x == 0) filled = 0;
    __syncthreads();
    const int lane = threadIdx.x % 32, i = blockIdx.x * 32 + lane;
    if (threadIdx.x >= 32) {
        stage[lane] = i < n ? x[i] : 0.0f;
        __threadfence_block();
        __syncwarp();
        if (lane == 0) filled = 1;
    } else {
        while (filled == 0) __nanosleep(100);
        __threadfence_block();
        if (i < n) out[i] = stage[lane];
    }
}
