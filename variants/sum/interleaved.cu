// /// opbench
// title     = "tree reduction in shared memory, interleaved addressing with a modulo"
// mechanism = ["coalesced", "block_reduction"]
// tune      = { BLOCK = [256, 512, 1024] }
// workspace = { partial = "cdiv(n, BLOCK)", partial_2 = "cdiv(n, BLOCK ** 2)" }
//
// [[launch]]
// kernel = "sum_interleaved"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "partial", "n"]
//
// [[launch]]
// kernel = "sum_interleaved"
// grid   = ["cdiv(n, BLOCK ** 2)"]
// block  = ["BLOCK"]
// args   = ["partial", "partial_2", "cdiv(n, BLOCK)"]
//
// [[launch]]
// kernel = "sum_interleaved"
// grid   = ["cdiv(n, BLOCK ** 3)"]
// block  = ["BLOCK"]
// args   = ["partial_2", "partial", "cdiv(n, BLOCK ** 2)"]
//
// [[launch]]
// kernel = "sum_interleaved"
// grid   = ["1"]
// block  = ["BLOCK"]
// args   = ["partial", "out", "cdiv(n, BLOCK ** 3)"]
// ///
//
// Reduction 1 of Harris, "Optimizing Parallel Reduction in CUDA" (2007). Each block stores one partial sum. The same
// kernel then adds the partial sums, in four levels in total, because 256^4 exceeds every int. The result is
// deterministic, and a tree from end to end, so its error grows only with log n. (With one atomicAdd per block instead,
// millions of them would queue at one address.) Limits: the active threads are scattered, so every warp executes every
// step, each with a slow modulo; and half of the threads are idle from the start.
extern "C" __global__ void sum_interleaved(const float* __restrict__ x, float* __restrict__ out, int n) {
    // x [n]; out: one sum per block
    __shared__ float tree[BLOCK];
    const unsigned t = threadIdx.x;
    const unsigned i = blockIdx.x * BLOCK + t;
    tree[t] = i < (unsigned)n ? x[i] : 0.0f;
    __syncthreads();
    for (unsigned distance = 1; distance < BLOCK; distance *= 2) {
        if (t % (2 * distance) == 0) tree[t] += tree[t + distance];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = tree[0];
}
