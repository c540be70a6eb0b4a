// /// opbench
// operator = "relu"
// title    = "a warp polls by atomicAdd(&flag, 0) and by atomicExch() a flag that another raises by a volatile store"
// launch   = [{ kernel = "a_flag_polled_by_an_atomic_addition", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// An atomic operation that leaves the value as it is loses no store. The warp that raises the flag again has seen that
// the other one has lowered it.
__global__ void a_flag_polled_by_an_atomic_addition(const float* x, float* out, int n) {
    __shared__ int flag;
    __shared__ volatile int data;
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int round = 1; round < 4; ++round) {
            while (*(volatile int*)&flag) {}
            __threadfence_block();
            data = round;
            __threadfence_block();
            *(volatile int*)&flag = 1;
        }
    } else if (threadIdx.x == 32) {
        for (int round = 1; round < 4; ++round) {
            while (atomicAdd(&flag, 0) == 0) {}
            __threadfence_block();
            if (data != round && i < n) out[i] = -1.0f;
            __threadfence_block();
            while (atomicExch(&flag, 0) == 0) {}
        }
    }
}
