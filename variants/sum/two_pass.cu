// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "uniform_warps", "fewer_barriers", "warp_shuffle",
//     "unrolled", "grid_stride",
// ]
// tune      = { BLOCK = [256, 512], BLOCKS = [1056, 528, 264], UNROLL = [4, 2, 8] }
// where     = ["BLOCK * BLOCKS <= 270336"]
// define.OVERLAP = 0
// workspace = { partial = "BLOCKS" }
//
// [[launch]]
// kernel = "sum_to_partials"
// grid   = ["min(cdiv(n, 4 * BLOCK), BLOCKS)"]
// block  = ["BLOCK"]
// args   = ["x", "partial", "n"]
//
// [[launch]]
// kernel = "sum_of_partials"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["partial", "out", "min(cdiv(n, 4 * BLOCK), BLOCKS)"]
//
// [variant.two_pass]
// title     = "two kernels: a fixed number of block sums, then one block that adds them in fixed order"
// builds_on = "grid_stride_vec4"
//
// [variant.two_pass_overlapped]
// title     = "programmatic dependent launch: the second kernel starts early and waits on the GPU"
// builds_on = "two_pass"
// mechanism = ["overlapped_launch"]
// where     = ["UNROLL == 4 and BLOCK * BLOCKS == 270336"]
// define.OVERLAP = 1
// compute_capability = "9.0"
//
// [[variant.two_pass_overlapped.launch]]
// kernel = "sum_to_partials"
// grid   = ["min(cdiv(n, 4 * BLOCK), BLOCKS)"]
// block  = ["BLOCK"]
// args   = ["x", "partial", "n"]
//
// [[variant.two_pass_overlapped.launch]]
// kernel = "sum_of_partials"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["partial", "out", "min(cdiv(n, 4 * BLOCK), BLOCKS)"]
// programmatic = true
// ///
//
// The same loads as in the previous variant, but the sums of the blocks are stored in a workspace, and a second kernel
// adds them in a fixed order. There are no atomics, and the number of blocks does not depend on the GPU, so the bits
// are the same every time. 1056 blocks are 8 on each of 132 multiprocessors. The cost is a second launch of a few
// microseconds, most of which Hopper hides: with OVERLAP, the first kernel lets the second one start, so that it is
// already resident when the last sum is stored. Limit: HBM, reading only.

#include <opbench/grid_sum.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

extern "C" __global__ void sum_to_partials(const float* __restrict__ x, float* __restrict__ partial, int n) {
    // x [n], aligned to 16 bytes; partial: one sum per block
    __shared__ float warps[BLOCK / 32];
#if OVERLAP
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    const unsigned t = threadIdx.x;
    const float sum = warp_sum(grid_stride_sum<BLOCK, UNROLL>(x, (unsigned)n));
    if (t % 32 == 0) warps[t / 32] = sum;
    __syncthreads();
    if (t < 32) {
        const float total = warp_sum(t < BLOCK / 32 ? warps[t] : 0.0f);
        if (t == 0) partial[blockIdx.x] = total;
    }
}

extern "C" __global__ void sum_of_partials(const float* partial, float* __restrict__ out, int count) {
    // partial [count]; out [1]; one block of 1024 threads
    __shared__ float warps[32];
    const int t = threadIdx.x;
#if OVERLAP
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    float sum = 0.0f;
    for (int i = t; i < count; i += 1024) sum += partial[i];
    sum = warp_sum(sum);
    if (t % 32 == 0) warps[t / 32] = sum;
    __syncthreads();
    if (t < 32) {
        const float total = warp_sum(warps[t]);
        if (t == 0) out[0] = total;
    }
}
