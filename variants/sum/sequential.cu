// /// opbench
// title     = "tree reduction in shared memory, sequential addressing"
// builds_on = "interleaved"
// mechanism = ["coalesced", "block_reduction", "uniform_warps"]
// tune      = { BLOCK = [256, 512, 1024] }
// workspace = { partial = "cdiv(n, BLOCK)", partial_2 = "cdiv(n, BLOCK ** 2)" }
//
// [[launch]]
// kernel = "sum_sequential"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "partial", "n"]
//
// [[launch]]
// kernel = "sum_sequential"
// grid   = ["cdiv(n, BLOCK ** 2)"]
// block  = ["BLOCK"]
// args   = ["partial", "partial_2", "cdiv(n, BLOCK)"]
//
// [[launch]]
// kernel = "sum_sequential"
// grid   = ["cdiv(n, BLOCK ** 3)"]
// block  = ["BLOCK"]
// args   = ["partial_2", "partial", "cdiv(n, BLOCK ** 2)"]
//
// [[launch]]
// kernel = "sum_sequential"
// grid   = ["1"]
// block  = ["BLOCK"]
// args   = ["partial", "out", "cdiv(n, BLOCK ** 3)"]
// ///
//
// Reduction 3 of Harris, "Optimizing Parallel Reduction in CUDA" (2007): the active threads are the first ones, so
// whole warps become idle, there is no modulo, and neighbouring threads use neighbouring banks. The kernel is launched
// for several levels, as in `interleaved`. Limit: half of the threads are idle after their load, which is their only
// one.
extern "C" __global__ void sum_sequential(const float* __restrict__ x, float* __restrict__ out, int n) {
    // x [n]; out: one sum per block
    __shared__ float tree[BLOCK];
    const unsigned t = threadIdx.x;
    const unsigned i = blockIdx.x * BLOCK + t;
    tree[t] = i < (unsigned)n ? x[i] : 0.0f;
    __syncthreads();
    for (unsigned distance = BLOCK / 2; distance > 0; distance /= 2) {
        if (t < distance) tree[t] += tree[t + distance];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = tree[0];
}
