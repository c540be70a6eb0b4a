// /// opbench
// operator = "sum"
// title    = "the last warp adds up in volatile memory with __syncwarp() between steps"
// launch   = [{ kernel = "steps_of_a_warp_in_volatile_memory", grid = ["1"], block = ["32"] }]
// ///
//
// Loads come before the barrier and stores after it, so lanes need not run in step.
extern "C" __global__ void steps_of_a_warp_in_volatile_memory(const float* x, float* out, int n) {
    __shared__ float tree[64];
    volatile float* last = tree;
    const int t = threadIdx.x;
    float own = 0.0f;
    for (int i = t; i < n; i += 32) own += x[i];
    last[t] = own;
    last[t + 32] = 0.0f;
    __syncwarp();
    for (int distance = 16; distance > 0; distance /= 2) {
        const float other = last[t + distance];
        __syncwarp();
        last[t] = own += other;
        __syncwarp();
    }
    if (t == 0) out[0] = own;
}
