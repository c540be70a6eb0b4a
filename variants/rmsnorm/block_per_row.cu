// /// opbench
// title     = "one block per row, two passes, the sum by warp shuffles and shared memory"
// builds_on = "thread_per_row"
// mechanism = ["coalesced", "block_reduction", "warp_shuffle"]
// tune      = { BLOCK = [256, 128, 512, 1024] }
// define   = { BF16 = "dtype == 'bf16'", ADD = "residual == 'add'" }
// supports = { dtype = ["f32", "bf16"], residual = ["none", "add"] }
//
// [[launch]]
// kernel = "rmsnorm_block_per_row"
// grid   = ["rows"]
// block  = ["BLOCK"]
// ///
//
// The lanes of a warp read neighbouring elements of a row, so accesses are coalesced. The second pass reads the row
// from the L1 cache if it fits there, otherwise from the L2 cache. Limits: two passes, with barriers between them;
// short rows leave most threads idle.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// Return the sum of `value` over the block, in every thread. The first barrier makes sure that all threads have read
// the previous sum before `shared` is overwritten.
__device__ __forceinline__ float over_block(float value, float* shared) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[0];
#pragma unroll
    for (int warp = 1; warp < BLOCK / 32; ++warp) value += shared[warp];
    return value;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    rmsnorm_block_per_row(const T* __restrict__ x,
#if ADD
                          const T* __restrict__ residual,
#endif
                          const float* __restrict__ weight, T* __restrict__ out, float* __restrict__ rstd,
#if ADD
                          T* total,
#endif
                          int rows, int cols) {
    // x, residual, out, total [rows][cols]; weight [cols]; rstd [rows]
    __shared__ float shared[BLOCK / 32];
    const T* source = x + (size_t)blockIdx.x * cols;
    T* target = out + (size_t)blockIdx.x * cols;
#if ADD
    total += (size_t)blockIdx.x * cols;
    residual += (size_t)blockIdx.x * cols;
    for (int c = threadIdx.x; c < cols; c += BLOCK) total[c] = (T)((float)source[c] + (float)residual[c]);
    source = total;  // each thread reads only what it wrote itself, so no barrier is needed
#endif
    float squares = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) squares += (float)source[c] * (float)source[c];
    const float factor = rsqrtf(over_block(squares, shared) / cols + 1e-5f);
    for (int c = threadIdx.x; c < cols; c += BLOCK) {
        target[c] = (T)((float)source[c] * factor * weight[c]);
    }
    if (threadIdx.x != 0) return;
    rstd[blockIdx.x] = factor;
}
