// /// opbench
// title     = "float4 loads that bypass L1; every round reads the whole array again"
// mechanism = ["coalesced", "vectorised_access", "warp_shuffle", "grid_stride"]
// tune      = { BLOCKS_PER_SM = [2, 4, 8] }
// requires  = ["n <= 2 ** 31 - 2 ** 20"]
// workspace = { partial = "sm_count * BLOCKS_PER_SM" }
//
// [[launch]]
// kernel = "reread_vec4"
// grid   = ["sm_count * BLOCKS_PER_SM"]
// block  = ["256"]
// args   = ["x", "partial", "n", "rounds"]
//
// [[launch]]
// kernel = "reread_finish"
// grid   = ["1"]
// block  = ["256"]
// args   = ["partial", "out", "sm_count * BLOCKS_PER_SM"]
// ///
// Every load is a 16-byte `__ldcg`, which caches only in L2. So after the first round the array is read from L2, and
// only L2 limits the rate as long as the array fits in it. Each round starts one block further, so that no block reads
// the lines that it has just read. Four loads per thread are in flight. The maximum makes sure that every load is
// needed, costs one instruction per element, and is exact in any order. The flush before a sample with cold L2 costs
// one round of many.
// instruction; it is exact in any order. The flush before a cold sample costs one round of many.
__device__ __forceinline__ float max4(float best, float4 v) {
    return fmaxf(fmaxf(best, fmaxf(v.x, v.y)), fmaxf(v.z, v.w));
}

// Return the maximum over 256 threads; valid in thread 0.
__device__ float block_max(float best) {
    __shared__ float warps[8];
    for (int offset = 16; offset > 0; offset /= 2) best = fmaxf(best, __shfl_down_sync(0xffffffffu, best, offset));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int w = 1; w < 8; ++w) best = fmaxf(best, warps[w]);
    return best;
}

// x: n floats, 16-byte aligned; partial: one float per block.
extern "C" __global__ void __launch_bounds__(256)
    reread_vec4(const float* __restrict__ x, float* __restrict__ partial, int n, int rounds) {
    const int vectors = n / 4, threads = gridDim.x * 256;
    const float4* x4 = reinterpret_cast<const float4*>(x);
    float best = -3.402823466e+38f;
    for (int round = 0; round < rounds; ++round) {
        const int first = (blockIdx.x + round) % gridDim.x * 256 + threadIdx.x;
        int i = first;
        for (; i + 3 * threads < vectors; i += 4 * threads) {
            const float4 a = __ldcg(x4 + i), b = __ldcg(x4 + i + threads);
            const float4 c = __ldcg(x4 + i + 2 * threads), d = __ldcg(x4 + i + 3 * threads);
            best = max4(max4(max4(max4(best, a), b), c), d);
        }
        for (; i < vectors; i += threads) best = max4(best, __ldcg(x4 + i));
        for (int tail = vectors * 4 + first; tail < n; tail += threads) best = fmaxf(best, __ldcg(x + tail));
    }
    best = block_max(best);
    if (threadIdx.x == 0) partial[blockIdx.x] = best;
}

extern "C" __global__ void __launch_bounds__(256)
    reread_finish(const float* __restrict__ partial, float* __restrict__ out, int count) {
    float best = -3.402823466e+38f;
    for (int i = threadIdx.x; i < count; i += 256) best = fmaxf(best, partial[i]);
    best = block_max(best);
    if (threadIdx.x == 0) out[0] = best;
}
