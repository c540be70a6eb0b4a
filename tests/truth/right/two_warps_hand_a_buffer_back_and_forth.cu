// /// opbench
// operator = "relu"
// title    = "a volatile flag says whose turn it is, with fences on both sides"
// launch   = [{ kernel = "two_warps_hand_a_buffer_back_and_forth", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Each warp sees the other one's store, fences, and only then stores another value.
__global__ void two_warps_hand_a_buffer_back_and_forth(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ volatile int turn;
    __shared__ int buffer;
    if (threadIdx.x == 0) turn = 0;
    __syncthreads();
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) {
        for (int round = 0; round < 4; ++round) {
            while (turn != warp) {}
            __threadfence_block();
            buffer = round + warp;
            __threadfence_block();
            turn = 1 - warp;
        }
    }
    __syncthreads();
    if (i < n && buffer != 4) out[i] = -1.0f;
}
