// /// opbench
// title     = "float4 loads from shared memory; every round reads the same tile again"
// mechanism = ["coalesced", "vectorised_access", "warp_shuffle"]
// tune      = { BLOCK = [256, 128, 512] }
// workspace = { partial = "cdiv(n, 16 * BLOCK)" }
//
// [[launch]]
// kernel = "shared_reread"
// grid   = ["cdiv(n, 16 * BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "partial", "n", "rounds"]
//
// [[launch]]
// kernel = "shared_finish"
// grid   = ["1"]
// block  = ["256"]
// args   = ["partial", "out", "cdiv(n, 16 * BLOCK)"]
// ///
//
// Each block copies 16 elements per thread to shared memory once and then reads them `rounds` times, 16 bytes per lane.
// Such a request of a warp is four wavefronts of 128 bytes without bank conflicts, and a multiprocessor delivers one
// wavefront per cycle. Each round is shifted by one thread, so that the compiler cannot reuse a value that the thread
// has read before. The maximum of all values is stored, so the compiler cannot remove a read; a maximum costs one
// instruction per 4 bytes, half of the rate of its unit.
__device__ __forceinline__ float max4(float best, float4 v) {
    return fmaxf(fmaxf(best, fmaxf(v.x, v.y)), fmaxf(v.z, v.w));
}

// The maximum of a block's values; valid in thread 0.
template <int THREADS>
__device__ float block_max(float best) {
    __shared__ float warps[THREADS / 32];
    for (int offset = 16; offset > 0; offset /= 2) best = fmaxf(best, __shfl_down_sync(0xffffffffu, best, offset));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int w = 1; w < THREADS / 32; ++w) best = fmaxf(best, warps[w]);
    return best;
}

// x: n floats; partial: one float per block.
extern "C" __global__ void __launch_bounds__(BLOCK)
    shared_reread(const float* __restrict__ x, float* __restrict__ partial, int n, int rounds) {
    __shared__ float4 piece[4 * BLOCK];
    const int t = threadIdx.x, first = blockIdx.x * 16 * BLOCK;
    float* flat = reinterpret_cast<float*>(piece);
    for (int i = t; i < 16 * BLOCK; i += BLOCK) flat[i] = first + i < n ? x[first + i] : -3.402823466e+38f;
    __syncthreads();
    float best = -3.402823466e+38f;
    for (int round = 0; round < rounds; ++round) {
        const int at = (t + round) % BLOCK;
#pragma unroll
        for (int u = 0; u < 4; ++u) best = max4(best, piece[at + u * BLOCK]);
    }
    best = block_max<BLOCK>(best);
    if (t == 0) partial[blockIdx.x] = best;
}

extern "C" __global__ void __launch_bounds__(256)
    shared_finish(const float* __restrict__ partial, float* __restrict__ out, int count) {
    float best = -3.402823466e+38f;
    for (int i = threadIdx.x; i < count; i += 256) best = fmaxf(best, partial[i]);
    best = block_max<256>(best);
    if (threadIdx.x == 0) out[0] = best;
}
