// /// opbench
// title     = "rows: one block per row, sums by warp shuffles; the second pass reads the row from a cache"
// builds_on = "thread_per_group"
// mechanism = ["coalesced", "block_reduction", "warp_shuffle"]
// tune      = { BLOCK = [256, 512, 1024, 128] }
// supports  = { norm = ["l1", "l2", "mean_abs", "rms"] }
// define    = { SQUARES = "norm in ('l2', 'rms')", MEAN = "norm in ('mean_abs', 'rms')" }
// requires  = ["inner == 1"]
//
// [[launch]]
// kernel = "normalize_block_per_row"
// grid   = ["outer"]
// block  = ["BLOCK"]
// args   = ["x", "out", "axis"]
// ///
//
// Threads of a block share a row and access neighbouring elements. Rows of up to some 100 KB are in L1 or L2 when the
// second pass reads them. Limits: 4 bytes per access; one block cannot use the bandwidth of the GPU, so that few long
// rows are slow.

// Return the factor for the elements of a row, given the sum of their absolute values or squares.
__device__ __forceinline__ float factor_of(float sum, int axis) {
    const float base = MEAN ? sum / (float)axis : sum;
    return SQUARES ? rsqrtf(base + (MEAN ? 1e-5f : 0.0f)) : 1.0f / base;
}
__device__ __forceinline__ float term(float x) { return SQUARES ? x * x : fabsf(x); }

// x, out [rows][axis]; a block has a row
extern "C" __global__ void __launch_bounds__(BLOCK)
    normalize_block_per_row(const float* __restrict__ x, float* __restrict__ out, int axis) {
    __shared__ float warps[BLOCK / 32];
    const float* from = x + (size_t)blockIdx.x * axis;
    float* to = out + (size_t)blockIdx.x * axis;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < axis; i += BLOCK) sum += term(from[i]);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int warp = 0; warp < BLOCK / 32; ++warp) sum += warps[warp];
    const float factor = factor_of(sum, axis);
    for (int i = threadIdx.x; i < axis; i += BLOCK) to[i] = from[i] * factor;
}
