// /// opbench
// operator = "copy"
// title    = "the first warp spins on a flag in shared memory until the second has filled the stage"
// launch   = [{ kernel = "a_warp_spins_until_another_has_filled", grid = ["cdiv(n, 32)"], block = ["64"] }]
// ///
//
// The flag is volatile and fenced on both sides. Each warp makes progress of its own.
extern "C" __global__ void a_warp_spins_until_another_has_filled(const float* x, float* out, int n) {
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
        while (filled == 0) {}
        __threadfence_block();
        if (i < n) out[i] = stage[lane];
    }
}
