// /// opbench
// title     = "grid-stride loop with float4 loads, one atomic addition per block"
// builds_on = "shuffle"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "uniform_warps", "fewer_barriers", "warp_shuffle",
//     "unrolled", "grid_stride",
// ]
// tune      = { BLOCK = [256, 512], BLOCKS_PER_SM = [8, 4, 2], UNROLL = [4, 2, 8, 1] }
// where     = ["BLOCK * BLOCKS_PER_SM <= 2048"]
// reproducible = false
//
// [[launch]]
// zero = "out"
//
// [[launch]]
// kernel = "sum_grid_stride_vec4"
// grid   = ["min(cdiv(n, 4 * BLOCK), sm_count * BLOCKS_PER_SM)"]
// block  = ["BLOCK"]
// ///
//
// At most as many blocks as fit on the GPU at once. Each thread adds thousands of elements in registers, with UNROLL loads
// of 16 bytes in flight (Harris' "multiple elements per thread"; Luitjens 2014 for the atomics). So the tree at the end
// costs nearly nothing, and about a thousand atomic additions combine the blocks. Each addition rounds a total of the
// order of sqrt(n) by at most half a unit in its last place, 2^-10 for n = 2^28: in the worst case 1 in total, where
// the operator allows 100. The order of the atomics differs from run to run, and so may the last bits. Limit: HBM,
// reading only.

#include <opbench/grid_sum.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

extern "C" __global__ void sum_grid_stride_vec4(const float* __restrict__ x, float* __restrict__ out, int n) {
    // x [n], aligned to 16 bytes; out [1], zero at the start
    __shared__ float warps[BLOCK / 32];
    const unsigned t = threadIdx.x;
    const float sum = warp_sum(grid_stride_sum<BLOCK, UNROLL>(x, (unsigned)n));
    if (t % 32 == 0) warps[t / 32] = sum;
    __syncthreads();
    if (t < 32) {
        const float total = warp_sum(t < BLOCK / 32 ? warps[t] : 0.0f);
        if (t == 0) atomicAdd(out, total);
    }
}
