// /// opbench
// title     = "three kernels: the loss of each element, the mean, the gradient"
// mechanism = ["coalesced", "block_reduction", "warp_shuffle"]
// tune      = { BLOCK = [256, 128, 512] }
// define    = { BF16 = "dtype == 'bf16'" }
// supports  = { dtype = ["f32", "bf16"] }
// requires  = ["n < 2 ** 31"]
// workspace = { terms = "n" }
//
// [[launch]]
// kernel = "terms_of_loss"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "target", "terms", "n", "cols"]
//
// [[launch]]
// kernel = "mean_of_terms"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["terms", "loss", "n", "micro"]
//
// [[launch]]
// kernel = "gradient_of_loss"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "target", "dx", "n", "cols", "micro"]
// ///
//
// The first variant, as a framework runs a loss: the first kernel stores the terms, one block adds them in a fixed
// order, and in the backward pass a third kernel computes the gradient from both inputs again. Limits: the inputs are
// read twice, the terms are written and read; a single block on one multiprocessor adds all terms.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// Return a term of the loss; store its derivative, times `scale`, in `slope`.
__device__ __forceinline__ float term(float x, float target, float scale, float& slope) {
    const float margin = 1.0f - x * target;
    slope = margin >= 0.0f ? -scale * target : 0.0f;
    return margin < 0.0f ? 0.0f : margin;  // fmaxf would lose NaN
}

// Return the sum of `value` over the block, added in a fixed order, in thread 0.
template <int THREADS>
__device__ __forceinline__ float block_sum(float value) {
    __shared__ float warps[THREADS / 32];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xffffffffu, value, distance);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x >= 32) return 0.0f;
    value = threadIdx.x < THREADS / 32 ? warps[threadIdx.x] : 0.0f;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xffffffffu, value, distance);
    return value;
}

extern "C" __global__ void terms_of_loss(const T* __restrict__ x, const T* __restrict__ target,
                                         float* __restrict__ terms, int n, int cols) {
    // x, terms [n]; target [cols]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    float unused;
    if (i < (unsigned)n) terms[i] = term((float)x[i], (float)target[i % (unsigned)cols], 1.0f, unused);
}

extern "C" __global__ void __launch_bounds__(1024)
    mean_of_terms(const float* __restrict__ terms, float* __restrict__ loss, int n, int micro) {
    // terms [n]; loss [1]; one block of 1024 threads
    float sum = 0.0f, excess = 0.0f;  // Kahan summation, because n / 1024 terms would lose digits
    for (unsigned i = threadIdx.x; i < (unsigned)n; i += 1024) {
        const float compensated = terms[i] - excess, next = sum + compensated;
        excess = (next - sum) - compensated;
        sum = next;
    }
    sum = block_sum<1024>(sum);
    if (threadIdx.x == 0) loss[0] = sum / (float)((long long)n * micro);
}

extern "C" __global__ void gradient_of_loss(const T* __restrict__ x, const T* __restrict__ target, T* __restrict__ dx,
                                            int n, int cols, int micro) {
    // x, dx [n]; target [cols]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n) return;
    float slope;
    term((float)x[i], (float)target[i % (unsigned)cols], 1.0f / (float)((long long)n * micro), slope);
    dx[i] = (T)slope;
}
