// /// opbench
// title     = "rows of any length: up to SPLIT blocks per row add parts, one block adds the sums, all blocks scale"
// builds_on = "rows_registers"
// mechanism = ["coalesced", "vectorised_access", "block_reduction", "warp_shuffle", "unrolled", "grid_stride"]
// tune      = { SPLIT = [1024, 256], BLOCK = [256, 512], UNROLL = [4, 2] }
// supports  = { norm = ["l1", "l2", "mean_abs", "rms"], dtype = ["f32", "bf16"] }
// requires  = ["inner == 1", "outer * max(PARTS, TILES) < 2 ** 31"]
// workspace = { partial = "outer * PARTS", factor = "outer" }
//
// [define]
// BF16    = "dtype == 'bf16'"
// SQUARES = "norm in ('l2', 'rms')"
// MEAN    = "norm in ('mean_abs', 'rms')"
// LANES   = "lanes"
// TILES   = "cdiv(axis // lanes, BLOCK * UNROLL)"
// PARTS   = "min(SPLIT, TILES)"
//
// [[launch]]
// kernel = "normalize_sums"
// grid   = ["outer * PARTS"]
// block  = ["BLOCK"]
// args   = ["x", "partial", "axis"]
//
// [[launch]]
// kernel = "normalize_factors"
// grid   = ["outer"]
// block  = ["BLOCK"]
// args   = ["partial", "factor", "axis"]
//
// [[launch]]
// kernel = "normalize_scale"
// grid   = ["outer * TILES"]
// block  = ["BLOCK"]
// args   = ["x", "factor", "out", "axis"]
// ///
//
// One block can use only a few percent of the GPU's bandwidth, so a row of many megabytes needs many blocks (for the
// Frobenius norm, the row is the whole tensor). Their number depends only on the row, and partial sums are added in a
// fixed order: the same bits on every GPU. Limit: HBM; x is read twice unless L2 holds it; for short rows the three
// launches.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Packed<T, LANES> Pack;

// Return the factor for the elements of a group, from the sum of their absolute values or squares.
__device__ __forceinline__ float factor_of(float sum, int axis) {
    const float base = MEAN ? sum / (float)axis : sum;
    return SQUARES ? rsqrtf(base + (MEAN ? 1e-5f : 0.0f)) : 1.0f / base;
}
__device__ __forceinline__ float term(float x) { return SQUARES ? x * x : fabsf(x); }

// x [rows][axis]; partial [rows][PARTS]; PARTS blocks per row, which process its tiles in turn
extern "C" __global__ void __launch_bounds__(BLOCK)
    normalize_sums(const T* __restrict__ x, float* __restrict__ partial, int axis) {
    __shared__ float warps[BLOCK / 32][1];
    const unsigned vectors = (unsigned)axis / LANES;
    const Pack* row = reinterpret_cast<const Pack*>(x) + (size_t)(blockIdx.x / PARTS) * vectors;
    float sum[1] = {};
    for (unsigned tile = blockIdx.x % PARTS; tile < TILES; tile += PARTS) {
        const unsigned first = tile * (BLOCK * UNROLL) + threadIdx.x;
        Pack pack[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            pack[u] = Pack();
            if (first + u * BLOCK < vectors) pack[u] = row[first + u * BLOCK];
        }
        float part = 0.0f;  // a single running sum for all tiles would lose digits
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) part += term(lane_of<T>(pack[u], lane));
        sum[0] += part;
    }
    block_sums<BLOCK>(sum, warps);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum[0];
}

// partial [rows][PARTS]; factor [rows]; one block for each row
extern "C" __global__ void __launch_bounds__(BLOCK)
    normalize_factors(const float* __restrict__ partial, float* __restrict__ factor, int axis) {
    __shared__ float warps[BLOCK / 32][1];
    float sum[1] = {};
    for (int i = threadIdx.x; i < PARTS; i += BLOCK) sum[0] += partial[(size_t)blockIdx.x * PARTS + i];
    block_sums<BLOCK>(sum, warps);
    if (threadIdx.x == 0) factor[blockIdx.x] = factor_of(sum[0], axis);
}

// x, out [rows][axis]; factor [rows]; one tile per block
extern "C" __global__ void __launch_bounds__(BLOCK)
    normalize_scale(const T* __restrict__ x, const float* __restrict__ factor, T* __restrict__ out, int axis) {
    const unsigned vectors = (unsigned)axis / LANES, row = blockIdx.x / TILES;
    const unsigned first = blockIdx.x % TILES * (BLOCK * UNROLL) + threadIdx.x;
    const Pack* from = reinterpret_cast<const Pack*>(x) + (size_t)row * vectors;
    Pack* to = reinterpret_cast<Pack*>(out) + (size_t)row * vectors;
    const float own = factor[row];
    Pack pack[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        if (first + u * BLOCK < vectors) pack[u] = from[first + u * BLOCK];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * BLOCK >= vectors) break;
        Vector<T, LANES> result;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) result.lane(lane) = (T)(lane_of<T>(pack[u], lane) * own);
        to[first + u * BLOCK] = result.raw;
    }
}
