// /// opbench
// title     = "float4 loads in a grid-stride loop, one atomic addition per block"
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
// Only as many blocks as the device holds: each thread sums thousands of elements in registers with UNROLL 16-byte
// loads in flight (Harris' "multiple elements per thread"; Luitjens 2014 for the atomics), so the tree no longer costs
// anything, and about a thousand atomic additions join the blocks. Each of those rounds a total of the order of sqrt(n)
// to half a unit in its last place, 2^-10 for n = 2^28: together at the very worst 1, where the operator allows 100.
// Their order differs from run to run, and so may the last bits. Limit: HBM, reading only.

#include <opbench/vectors.cuh>
using namespace opbench;

// The sum of this thread's share of x, read as float4 with UNROLL loads in flight.
__device__ __forceinline__ float thread_sum(const float* __restrict__ x, unsigned n) {
    const unsigned whole = n / 4;
    const unsigned stride = gridDim.x * BLOCK;
    const unsigned thread = blockIdx.x * BLOCK + threadIdx.x;
    const float4* x4 = reinterpret_cast<const float4*>(x);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (unsigned first = thread; first < whole; first += UNROLL * stride) {
        float4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            v[u] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (first + u * stride < whole) v[u] = __ldcs(x4 + first + u * stride);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            sum.x += v[u].x;
            sum.y += v[u].y;
            sum.z += v[u].z;
            sum.w += v[u].w;
        }
    }
    const unsigned rest = 4 * whole + thread;  // the n % 4 elements left over go to the first threads
    if (thread < 4 && rest < n) sum.x += x[rest];
    return (sum.x + sum.y) + (sum.z + sum.w);
}

extern "C" __global__ void sum_grid_stride_vec4(const float* __restrict__ x, float* __restrict__ out, int n) {
    // x [n], aligned to 16 bytes; out [1], zero at the start
    __shared__ float warps[BLOCK / 32];
    const unsigned t = threadIdx.x;
    const float sum = warp_sum(thread_sum(x, (unsigned)n));
    if (t % 32 == 0) warps[t / 32] = sum;
    __syncthreads();
    if (t < 32) {
        const float total = warp_sum(t < BLOCK / 32 ? warps[t] : 0.0f);
        if (t == 0) atomicAdd(out, total);
    }
}
