// /// opbench
// title     = "columns: ROWS threads per group, 32 groups per block, sums in shared memory"
// builds_on = "thread_per_group"
// mechanism = ["coalesced", "block_reduction"]
// tune      = { ROWS = [8, 16, 4, 32] }
// supports  = { norm = ["l1", "l2", "mean_abs", "rms"] }
// define    = { SQUARES = "norm in ('l2', 'rms')", MEAN = "norm in ('mean_abs', 'rms')" }
// requires  = ["inner > 1", "outer * cdiv(inner, 32) < 2 ** 31"]
//
// [[launch]]
// kernel = "normalize_columns"
// grid   = ["outer * cdiv(inner, 32)"]
// block  = [32, "ROWS"]
// args   = ["x", "out", "axis", "inner"]
// ///
//
// A warp reads 32 neighbouring groups at one position of the axis, so all accesses are coalesced, and the ROWS warps of
// a block divide the positions. Limits: 4 bytes per access; the second pass reads x from L2, or from DRAM if the blocks
// that run at the same time need more than L2.

// The factor of the elements of a group, from the sum of their sizes or squares.
__device__ __forceinline__ float factor_of(float sum, int axis) {
    const float base = MEAN ? sum / (float)axis : sum;
    return SQUARES ? rsqrtf(base + (MEAN ? 1e-5f : 0.0f)) : 1.0f / base;
}
__device__ __forceinline__ float term(float x) { return SQUARES ? x * x : fabsf(x); }

// x, out [outer][axis][inner]; block (32, ROWS): x is the group
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    normalize_columns(const float* __restrict__ x, float* __restrict__ out, int axis, int inner) {
    __shared__ float sums[ROWS][32];
    const int tiles = (inner + 31) / 32, column = (int)(blockIdx.x % tiles) * 32 + threadIdx.x;
    const size_t first = (size_t)(blockIdx.x / tiles) * axis * inner + column;
    float sum = 0.0f;
    if (column < inner)
        for (int i = threadIdx.y; i < axis; i += ROWS) sum += term(x[first + (size_t)i * inner]);
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (column >= inner) return;
    sum = 0.0f;
#pragma unroll
    for (int y = 0; y < ROWS; ++y) sum += sums[y][threadIdx.x];
    const float factor = factor_of(sum, axis);
    for (int i = threadIdx.y; i < axis; i += ROWS)
        out[first + (size_t)i * inner] = x[first + (size_t)i * inner] * factor;
}
