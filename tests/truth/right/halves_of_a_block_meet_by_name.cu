// /// opbench
// operator = "copy"
// title    = "two pairs of warps meet each at a barrier of its own"
// launch   = [{ kernel = "halves_of_a_block_meet_by_name", grid = ["cdiv(n, 128)"], block = ["128"] }]
// ///
//
// bar.sync with a number and a count of threads orders those threads only, and orders their memory.
extern "C" __global__ void halves_of_a_block_meet_by_name(const float* x, float* out, int n) {
    __shared__ float tile[128];
    const int t = threadIdx.x, half = t / 64, i = blockIdx.x * 128 + t;
    tile[t] = i < n ? x[i] : 0.0f;
    asm volatile("bar.sync %0, 64;" ::"r"(half + 1) : "memory");
    const int other = half * 64 + 63 - t % 64, target = blockIdx.x * 128 + other;
    if (target < n) out[target] = tile[other];
}
