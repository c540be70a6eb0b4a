// /// opbench
// title     = "one block per row, loss and gradient in one kernel; a second kernel adds the losses in fixed order"
// builds_on = "three_kernels"
// mechanism = ["coalesced", "block_reduction", "warp_shuffle", "fewer_passes", "fused"]
// tune      = { BLOCK = [256, 128, 512, 1024] }
// define    = { BF16 = "dtype == 'bf16'", GRADIENT = "gradient == 'yes'" }
// supports  = { dtype = ["f32", "bf16"], gradient = ["yes", "no"] }
// workspace = { partial = "rows" }
//
// [[launch]]
// kernel = "loss_and_gradient"
// grid   = ["rows"]
// block  = ["BLOCK"]
// args   = ["logits", "labels", "dlogits?", "partial", "rows", "cols", "micro"]
//
// [[launch]]
// kernel = "mean_of_partials"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["partial", "loss", "rows", "rows", "micro"]
// ///
//
// Neighbouring threads read neighbouring elements of a row. The logarithms of the probabilities are not stored: each
// row stores one number, its loss, and a second kernel adds these numbers in order. Limits: three passes over the row,
// two of them from a cache; barriers; short rows leave most threads idle.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// Return the maximum or sum over the block, in every thread. The first barrier makes sure that all threads have read
// the previous result before `shared` is overwritten.
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
    loss_and_gradient(const T* __restrict__ logits, const int* __restrict__ labels,
#if GRADIENT
                      T* __restrict__ dlogits,
#endif
                      float* __restrict__ partial, int rows, int cols, int micro) {
    // logits, dlogits [rows][cols]; labels, partial [rows]
    __shared__ float shared[BLOCK / 32];
    const T* source = logits + (size_t)blockIdx.x * cols;
    const int label = labels[blockIdx.x];
    const bool valid = label >= 0 && label < cols;
    const float nan = __int_as_float(0x7fc00000);
    float largest = __int_as_float(0xff800000), sum = 0.0f;  // -infinity
    for (int c = threadIdx.x; c < cols; c += BLOCK) largest = fmaxf(largest, (float)source[c]);
    largest = over_block<true>(largest, shared);
    for (int c = threadIdx.x; c < cols; c += BLOCK) sum += __expf((float)source[c] - largest);
    sum = over_block<false>(sum, shared);
    if (threadIdx.x == 0) partial[blockIdx.x] = valid ? logf(sum) - ((float)source[label] - largest) : nan;
#if GRADIENT
    T* target = dlogits + (size_t)blockIdx.x * cols;
    const float scale = 1.0f / (float)((long long)rows * micro), factor = valid ? 1.0f / sum : nan;
    for (int c = threadIdx.x; c < cols; c += BLOCK) {
        const float p = __expf((float)source[c] - largest) * factor;
        target[c] = (T)((p - (c == label ? 1.0f : 0.0f)) * scale);
    }
#endif
}

extern "C" __global__ void __launch_bounds__(1024)
    mean_of_partials(const float* __restrict__ partial, float* __restrict__ loss, int count, int rows, int micro) {
    // partial [count]; loss [1]; one block of 1024 threads
    __shared__ float warps[32];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < count; i += 1024) sum += partial[i];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    sum = warps[threadIdx.x];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) loss[0] = sum / (float)((long long)rows * micro);
}
