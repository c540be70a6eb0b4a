// /// opbench
// title     = "warp shuffles instead of a tree reduction in shared memory"
// builds_on = "unrolled_last_warp"
// mechanism = ["coalesced", "block_reduction", "uniform_warps", "fewer_barriers", "warp_shuffle"]
// tune      = { BLOCK = [256, 512, 1024] }
// workspace = { partial = "cdiv(n, 2 * BLOCK)", partial_2 = "cdiv(n, (2 * BLOCK) ** 2)" }
//
// [[launch]]
// kernel = "sum_shuffle"
// grid   = ["cdiv(n, 2 * BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "partial", "n"]
//
// [[launch]]
// kernel = "sum_shuffle"
// grid   = ["cdiv(n, (2 * BLOCK) ** 2)"]
// block  = ["BLOCK"]
// args   = ["partial", "partial_2", "cdiv(n, 2 * BLOCK)"]
//
// [[launch]]
// kernel = "sum_shuffle"
// grid   = ["cdiv(n, (2 * BLOCK) ** 3)"]
// block  = ["BLOCK"]
// args   = ["partial_2", "partial", "cdiv(n, (2 * BLOCK) ** 2)"]
//
// [[launch]]
// kernel = "sum_shuffle"
// grid   = ["1"]
// block  = ["BLOCK"]
// args   = ["partial", "out", "cdiv(n, (2 * BLOCK) ** 3)"]
// ///
//
// Values pass from register to register (Luitjens, "Faster Parallel Reductions on Kepler", 2014): five shuffles per
// warp, one value per warp in shared memory, one barrier per block. The kernel is launched for several levels, as in
// `interleaved`. Limit: each thread has only two loads of 4 bytes, and then its block ends.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xffffffffu, value, distance);
    return value;  // in lane 0
}

extern "C" __global__ void sum_shuffle(const float* __restrict__ x, float* __restrict__ out, int n) {
    // x [n]; out: one sum per block
    __shared__ float warps[BLOCK / 32];
    const unsigned t = threadIdx.x;
    const unsigned i = blockIdx.x * (2 * BLOCK) + t;
    const float low = i < (unsigned)n ? x[i] : 0.0f;
    const float high = i + BLOCK < (unsigned)n ? x[i + BLOCK] : 0.0f;
    const float sum = warp_sum(low + high);
    if (t % 32 == 0) warps[t / 32] = sum;
    __syncthreads();
    if (t < 32) {
        const float total = warp_sum(t < BLOCK / 32 ? warps[t] : 0.0f);
        if (t == 0) out[blockIdx.x] = total;
    }
}
