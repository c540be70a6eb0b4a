// /// opbench
// title     = "the first addition happens while loading: two elements per thread"
// builds_on = "sequential"
// mechanism = ["coalesced", "block_reduction", "uniform_warps", "fewer_barriers"]
// tune      = { BLOCK = [256, 512, 1024] }
// workspace = { partial = "cdiv(n, 2 * BLOCK)", partial_2 = "cdiv(n, (2 * BLOCK) ** 2)" }
//
// [[launch]]
// kernel = "sum_first_add_on_load"
// grid   = ["cdiv(n, 2 * BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "partial", "n"]
//
// [[launch]]
// kernel = "sum_first_add_on_load"
// grid   = ["cdiv(n, (2 * BLOCK) ** 2)"]
// block  = ["BLOCK"]
// args   = ["partial", "partial_2", "cdiv(n, 2 * BLOCK)"]
//
// [[launch]]
// kernel = "sum_first_add_on_load"
// grid   = ["cdiv(n, (2 * BLOCK) ** 3)"]
// block  = ["BLOCK"]
// args   = ["partial_2", "partial", "cdiv(n, (2 * BLOCK) ** 2)"]
//
// [[launch]]
// kernel = "sum_first_add_on_load"
// grid   = ["1"]
// block  = ["BLOCK"]
// args   = ["partial", "out", "cdiv(n, (2 * BLOCK) ** 3)"]
// ///
//
// Reduction 4 of Harris, "Optimizing Parallel Reduction in CUDA" (2007): half as many blocks and barriers per element,
// and two loads in flight per thread. The kernel is launched for several levels, as in `interleaved`. Limit: a barrier
// per step of the tree, even when only one warp is still active.
extern "C" __global__ void sum_first_add_on_load(const float* __restrict__ x, float* __restrict__ out, int n) {
    // x [n]; out: one sum per block
    __shared__ float tree[BLOCK];
    const unsigned t = threadIdx.x;
    const unsigned i = blockIdx.x * (2 * BLOCK) + t;
    const float low = i < (unsigned)n ? x[i] : 0.0f;
    const float high = i + BLOCK < (unsigned)n ? x[i + BLOCK] : 0.0f;
    tree[t] = low + high;
    __syncthreads();
    for (unsigned distance = BLOCK / 2; distance > 0; distance /= 2) {
        if (t < distance) tree[t] += tree[t + distance];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = tree[0];
}
