// /// opbench
// title     = "online softmax: maximum and sum in one pass; each new maximum rescales the sum"
// builds_on = "block_per_row"
// mechanism = ["coalesced", "block_reduction", "warp_shuffle", "fewer_passes"]
// tune      = { BLOCK = [256, 128, 512, 1024] }
// define    = { BF16 = "dtype == 'bf16'", LOG = "log == 'yes'" }
// supports  = { log = ["no", "yes"], dtype = ["f32", "bf16"] }
//
// [[launch]]
// kernel = "softmax_online"
// grid   = ["rows"]
// block  = ["BLOCK"]
// ///
//
// Two passes instead of three; the cost is one more exponential each time a thread's maximum grows. Each thread keeps
// its own maximum and sum. The sums are rescaled to the block's maximum before they are added. From Milakov and
// Gimelshein, "Online normalizer calculation for softmax" (2018). Limit: the row is still read twice, one element at a
// time.
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
    softmax_online(const T* __restrict__ x, T* __restrict__ out, int rows, int cols) {
    // x, out [rows][cols]
    __shared__ float shared[BLOCK / 32];
    const T* source = x + (size_t)blockIdx.x * cols;
    T* target = out + (size_t)blockIdx.x * cols;
    // not -infinity, because x can be -infinity, and the difference of two infinities is NaN
    const float lowest = -3.402823466e38f;
    float thread_max = lowest, sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) {
        const float value = (float)source[c];
        if (value > thread_max) {
            sum *= __expf(thread_max - value);  // the first time this factor is 0, and so is the sum
            thread_max = value;
        }
        sum += __expf(value - thread_max);
    }
    const float largest = over_block<true>(thread_max, shared);
    sum *= __expf(thread_max - largest);
    const float total = over_block<false>(sum, shared), last = LOG ? logf(total) : 1.0f / total;
    for (int c = threadIdx.x; c < cols; c += BLOCK) {
        const float below = (float)source[c] - largest;
        target[c] = (T)(LOG ? below - last : __expf(below) * last);
    }
}
