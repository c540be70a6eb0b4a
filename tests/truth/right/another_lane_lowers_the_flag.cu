// /// opbench
// operator = "relu"
// title    = "a flag that one lane raises, all lanes of a warp poll, and another lane lowers"
// launch   = [{ kernel = "another_lane_lowers_the_flag", grid = ["cdiv(n, 128)"], block = ["128"] }]
// ///
//
// All lanes have read the flag and fenced when __syncwarp() lets one of them store.
__global__ void another_lane_lowers_the_flag(const float* x, float* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ volatile int flag;
    __shared__ int data;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int round = 0; round < 3; ++round) {
        if (warp == 0 && lane == 0) {
            while (flag) {}
            __threadfence_block();
            data = round;
            __threadfence_block();
            flag = 1;
        } else if (warp == 1) {
            while (!flag) {}
            __threadfence_block();
            if (data == 99 && i < n) out[i] = -1.0f;
            __threadfence_block();
            __syncwarp();
            if (lane == 5) flag = 0;
            __syncwarp();
        }
    }
}
