// /// opbench
// title     = "the last six steps run in one warp without block-wide barriers"
// builds_on = "first_add_on_load"
// mechanism = ["coalesced", "block_reduction", "uniform_warps", "fewer_barriers"]
// tune      = { BLOCK = [256, 512, 1024] }
// workspace = { partial = "cdiv(n, 2 * BLOCK)", partial_2 = "cdiv(n, (2 * BLOCK) ** 2)" }
//
// [[launch]]
// kernel = "sum_unrolled_last_warp"
// grid   = ["cdiv(n, 2 * BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "partial", "n"]
//
// [[launch]]
// kernel = "sum_unrolled_last_warp"
// grid   = ["cdiv(n, (2 * BLOCK) ** 2)"]
// block  = ["BLOCK"]
// args   = ["partial", "partial_2", "cdiv(n, 2 * BLOCK)"]
//
// [[launch]]
// kernel = "sum_unrolled_last_warp"
// grid   = ["cdiv(n, (2 * BLOCK) ** 3)"]
// block  = ["BLOCK"]
// args   = ["partial_2", "partial", "cdiv(n, (2 * BLOCK) ** 2)"]
//
// [[launch]]
// kernel = "sum_unrolled_last_warp"
// grid   = ["1"]
// block  = ["BLOCK"]
// args   = ["partial", "out", "cdiv(n, (2 * BLOCK) ** 3)"]
// ///
//
// Reductions 5 and 6 of Harris, "Optimizing Parallel Reduction in CUDA" (2007): when 64 values are left, one warp
// finishes; BLOCK is known to the compiler, so every loop is unrolled. Harris relied on volatile and on warps in
// lockstep; since Volta, the lanes need __syncwarp between the reads and the writes of a step. The kernel is launched
// for several levels, as in `interleaved`. Limit: shared memory and two warp barriers per step, and few bytes in
// flight.
extern "C" __global__ void sum_unrolled_last_warp(const float* __restrict__ x, float* __restrict__ out, int n) {
    // x [n]; out: one sum per block
    __shared__ float tree[BLOCK];
    const unsigned t = threadIdx.x;
    const unsigned i = blockIdx.x * (2 * BLOCK) + t;
    const float low = i < (unsigned)n ? x[i] : 0.0f;
    const float high = i + BLOCK < (unsigned)n ? x[i + BLOCK] : 0.0f;
    tree[t] = low + high;
    __syncthreads();
#pragma unroll
    for (unsigned distance = BLOCK / 2; distance > 32; distance /= 2) {
        if (t < distance) tree[t] += tree[t + distance];
        __syncthreads();
    }
    if (t < 32) {
        float sum = tree[t];
#pragma unroll
        for (unsigned distance = 32; distance > 0; distance /= 2) {
            sum += tree[t + distance];  // lanes >= distance read values that are no longer needed
            __syncwarp();               // all lanes have read before any of them writes
            tree[t] = sum;
            __syncwarp();  // all lanes have written before any of them reads
        }
        if (t == 0) out[blockIdx.x] = sum;
    }
}
