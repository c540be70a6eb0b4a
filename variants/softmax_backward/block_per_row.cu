// /// opbench
// title     = "one block per row, two passes, the sum by warp shuffles and shared memory"
// builds_on = "thread_per_row"
// mechanism = ["coalesced", "block_reduction", "warp_shuffle"]
// tune      = { BLOCK = [256, 128, 512, 1024] }
// define    = { BF16 = "dtype == 'bf16'" }
// supports  = { dtype = ["f32", "bf16"] }
//
// [[launch]]
// kernel = "softmax_backward_block_per_row"
// grid   = ["rows"]
// block  = ["BLOCK"]
// ///
//
// Neighbouring threads read neighbouring elements of a row. The second pass reads the row from the L1 cache if it fits
// there, otherwise from the L2 cache. Limits: the second pass waits at a barrier for the first; short rows leave most
// threads idle.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
    softmax_backward_block_per_row(const T* __restrict__ out, const T* __restrict__ dout, T* __restrict__ dx, int rows,
                                   int cols) {
    // out, dout, dx [rows][cols]
    __shared__ float warps[BLOCK / 32];
    const size_t base = (size_t)blockIdx.x * cols;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) sum += (float)out[base + c] * (float)dout[base + c];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = warps[0];
#pragma unroll
    for (int warp = 1; warp < BLOCK / 32; ++warp) sum += warps[warp];
    for (int c = threadIdx.x; c < cols; c += BLOCK) {
        dx[base + c] = (T)((float)out[base + c] * ((float)dout[base + c] - sum));
    }
}
