// /// opbench
// supports  = { dtype = ["f32", "bf16"] }
// define    = { BF16 = "dtype == 'bf16'" }
//
// [variant.one_pass]
// title     = "loss and gradient in one pass; a second kernel adds the sums of all blocks in fixed order"
// builds_on = "three_kernels"
// mechanism = ["coalesced", "block_reduction", "warp_shuffle", "fewer_passes", "fused"]
// tune      = { BLOCK = [256, 128, 512], ITEMS = [8, 4] }
// requires  = ["n < 2 ** 31"]
// workspace = { partial = "cdiv(n, BLOCK * ITEMS)" }
// define    = { VECTORISED = "0" }
//
// [[variant.one_pass.launch]]
// kernel = "loss_and_gradient"
// grid   = ["cdiv(n, BLOCK * ITEMS)"]
// block  = ["BLOCK"]
// args   = ["x", "target", "dx", "partial", "n", "cols", "micro"]
//
// [[variant.one_pass.launch]]
// kernel = "mean_of_partials"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["partial", "loss", "cdiv(n, BLOCK * ITEMS)", "n", "micro"]
//
// [variant.vectorised]
// title     = "16-byte accesses, UNROLL vectors of both inputs in flight per thread"
// builds_on = "one_pass"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "warp_shuffle", "unrolled", "fewer_passes", "fused",
// ]
// tune      = { BLOCK = [256, 128, 512], UNROLL = [2, 1, 4], STREAM = [0, 1] }
// requires  = ["cols % LANES == 0 or rows == 1", "n < 2 ** 31"]
// workspace = { partial = "cdiv(n, LANES * BLOCK * UNROLL)" }
// define    = { LANES = "8 if dtype == 'bf16' else 4", VECTORISED = "1" }
//
// [[variant.vectorised.launch]]
// kernel = "loss_and_gradient_vectorised"
// grid   = ["cdiv(n, LANES * BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// args   = ["x", "target", "dx", "partial", "n", "cols", "micro"]
//
// [[variant.vectorised.launch]]
// kernel = "mean_of_partials"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["partial", "loss", "cdiv(n, LANES * BLOCK * UNROLL)", "n", "micro"]
// ///
//
// One pass computes loss and gradient: each input is read once, and only the gradient and one sum per block are
// written. The number of blocks depends only on n, not on the GPU, and the sums of the blocks are added in a fixed
// order, so the bits are the same every time. Limit: 4 bytes (2 in bf16) per access.
//
// In `vectorised`, a thread issues all its loads before it computes. All rows share one row of targets, which stays in
// L1 and L2. STREAM marks x and dx evict-first in L2, for tensors larger than the L2 cache. Limit: HBM, two arrays; for
// the second kernel, the launch.
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

#if VECTORISED
extern "C" __global__ void __launch_bounds__(BLOCK)
    loss_and_gradient_vectorised(const T* __restrict__ x, const T* __restrict__ target, T* __restrict__ dx,
                                 float* __restrict__ partial, int n, int cols, int micro) {
    // x, dx [n], target [cols], all aligned to 16 bytes; partial: one sum per block
    const unsigned first = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x;
    const unsigned whole = (unsigned)n / LANES, per_row = (unsigned)cols / LANES;  // no vector spans two rows
    const float scale = 1.0f / (float)((long long)n * micro);
    const uint4* x_vectors = reinterpret_cast<const uint4*>(x);
    const uint4* target_vectors = reinterpret_cast<const uint4*>(target);
    uint4 a[UNROLL], b[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= whole) break;
        a[u] = STREAM ? __ldcs(x_vectors + i) : x_vectors[i];
        b[u] = target_vectors[i % per_row];
    }
    float sum = 0.0f;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= whole) break;
        T* x_lane = reinterpret_cast<T*>(&a[u]);
        const T* target_lane = reinterpret_cast<const T*>(&b[u]);
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            float slope;
            sum += term((float)x_lane[lane], (float)target_lane[lane], scale, slope);
            x_lane[lane] = (T)slope;
        }
        if (STREAM) {
            __stcs(reinterpret_cast<uint4*>(dx) + i, a[u]);
        } else {
            reinterpret_cast<uint4*>(dx)[i] = a[u];
        }
    }
    const unsigned rest = LANES * whole + threadIdx.x;  // block 0 handles elements after the last vector
    if (blockIdx.x == 0 && threadIdx.x < LANES && rest < (unsigned)n) {
        float slope;
        sum += term((float)x[rest], (float)target[rest % (unsigned)cols], scale, slope);
        dx[rest] = (T)slope;
    }
    sum = block_sum<BLOCK>(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
#else
extern "C" __global__ void __launch_bounds__(BLOCK)
    loss_and_gradient(const T* __restrict__ x, const T* __restrict__ target, T* __restrict__ dx,
                      float* __restrict__ partial, int n, int cols, int micro) {
    // x, dx [n]; target [cols]; partial: one sum per block
    const unsigned first = blockIdx.x * (BLOCK * ITEMS) + threadIdx.x;
    const float scale = 1.0f / (float)((long long)n * micro);
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const unsigned i = first + k * BLOCK;
        if (i >= (unsigned)n) break;
        float slope;
        sum += term((float)x[i], (float)target[i % (unsigned)cols], scale, slope);
        dx[i] = (T)slope;
    }
    sum = block_sum<BLOCK>(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
#endif

extern "C" __global__ void __launch_bounds__(1024)
    mean_of_partials(const float* __restrict__ partial, float* __restrict__ loss, int count, int n, int micro) {
    // partial [count]; loss [1]; one block of 1024 threads
    float sum = 0.0f;
    for (int i = threadIdx.x; i < count; i += 1024) sum += partial[i];
    sum = block_sum<1024>(sum);
    if (threadIdx.x == 0) loss[0] = sum / (float)((long long)n * micro);
}
