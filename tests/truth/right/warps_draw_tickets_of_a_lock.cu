// /// opbench
// operator = "relu"
// title    = "a lock with tickets, and plain and volatile data"
// launch   = [{ kernel = "warps_draw_tickets_of_a_lock", grid = ["cdiv(n, 128)"], block = ["128"] }]
// ///
//
// The volatile number goes from one warp to the next, and each fences after it has read the number and before it stores.
__device__ unsigned next, total;
__device__ volatile unsigned serving, turns;
__global__ void warps_draw_tickets_of_a_lock(const float* x, float* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x % 32) return;
    const unsigned ticket = atomicAdd(&next, 1u);
    while (serving != ticket) {}
    __threadfence();
    total += 1;
    turns += 1;
    __threadfence();
    serving = ticket + 1;
}
