// /// opbench
// title     = "one block per row, three passes, maximum and sum by warp shuffles and shared memory"
// builds_on = "thread_per_row"
// mechanism = ["coalesced", "block_reduction", "warp_shuffle"]
// tune      = { BLOCK = [256, 128, 512, 1024] }
// define    = { BF16 = "dtype == 'bf16'", LOG = "log == 'yes'" }
// supports  = { log = ["no", "yes"], dtype = ["f32", "bf16"] }
//
// [[launch]]
// kernel = "softmax_block_per_row"
// grid   = ["rows"]
// block  = ["BLOCK"]
// ///
//
// The lanes of a warp read neighbouring elements of a row, so accesses are coalesced. The second and third pass read
// the row from the L1 cache if it fits there, otherwise from the L2 cache. Limits: three passes, with barriers between
// them; short rows leave most threads idle.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// Return the maximum or the sum of `value` over the block, in every thread. The first barrier makes sure that all
// threads have read the previous result before `shared` is overwritten.
template <bool MAXIMUM>
__device__ __forceinline__ float over_block(float value, float* shared) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, step);
        value = MAXIMUM ? fmaxf(value, other) : value + other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[0];
#pragma unroll
    for (int warp = 1; warp < BLOCK / 32; ++warp) value = MAXIMUM ? fmaxf(value, shared[warp]) : value + shared[warp];
    return value;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    softmax_block_per_row(const T* __restrict__ x, T* __restrict__ out, int rows, int cols) {
    // x, out [rows][cols]
    __shared__ float shared[BLOCK / 32];
    const T* source = x + (size_t)blockIdx.x * cols;
    T* target = out + (size_t)blockIdx.x * cols;
    float largest = __int_as_float(0xff800000), sum = 0.0f;  // -infinity
    for (int c = threadIdx.x; c < cols; c += BLOCK) largest = fmaxf(largest, (float)source[c]);
    largest = over_block<true>(largest, shared);
    for (int c = threadIdx.x; c < cols; c += BLOCK) sum += __expf((float)source[c] - largest);
    const float total = over_block<false>(sum, shared), last = LOG ? logf(total) : 1.0f / total;
    for (int c = threadIdx.x; c < cols; c += BLOCK) {
        const float below = (float)source[c] - largest;
        target[c] = (T)(LOG ? below - last : __expf(below) * last);
    }
}
