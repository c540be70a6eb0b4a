// /// opbench
// operator = "relu"
// title    = "volatile data that warps of two blocks update in turn"
// launch   = [{ kernel = "volatile_data_in_the_order_of_a_flag", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// A volatile access is not done before the loop that polls the flag has ended, so the flag's order holds without
// an acquire fence. The fences before the flag are as wide as the next reader is far.
__device__ int flag;
__device__ volatile int data;
__global__ void volatile_data_in_the_order_of_a_flag(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x % 32 || blockIdx.x > 1) return;
    const int turn = 2 * blockIdx.x + threadIdx.x / 32;
    while (atomicAdd(&flag, 0) != turn) {}
    data += turn + 1;
    if (turn % 2) __threadfence();
    else __threadfence_block();
    atomicExch(&flag, (turn + 1) % 4);
}
