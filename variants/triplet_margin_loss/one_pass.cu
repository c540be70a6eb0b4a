// /// opbench
// title     = "loss and gradients in one kernel: one block per row, which it reads a second time from a cache"
// builds_on = "three_kernels"
// mechanism = ["coalesced", "block_reduction", "warp_shuffle", "fewer_passes", "fused"]
// tune      = { BLOCK = [256, 128, 512] }
// define    = { BF16 = "dtype == 'bf16'" }
// supports  = { dtype = ["f32", "bf16"] }
// workspace = { losses = "rows" }
//
// [[launch]]
// kernel = "loss_and_gradients"
// grid   = ["rows"]
// block  = ["BLOCK"]
// args   = [
//     "anchor", "positive", "negative", "danchor", "dpositive", "dnegative", "losses", "rows", "cols", "micro",
// ]
//
// [[launch]]
// kernel = "mean_of_losses"
// grid   = [1]
// block  = [1024]
// args   = ["losses", "loss", "rows", "micro"]
// ///
//
// The gradients of a row depend only on its own two distances. The block that has computed them reads its three rows
// again, from L1 or L2, and writes the gradients. Limit: 4 bytes (2 in bf16) per access.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// Return x - y + 1e-6. PyTorch adds 1e-6 to each difference, so that a distance of 0 has a derivative.
__device__ __forceinline__ float difference(float x, float y) { return x - y + 1e-6f; }

// Return the loss of a row; store the factors of its differences in the gradient in `near` and `far`.
__device__ __forceinline__ float loss_of_row(float positive, float negative, float scale, float& near, float& far) {
    const float loss = 1.0f + positive - negative;
    near = loss < 0.0f || positive <= 0.0f ? 0.0f : scale / positive;
    far = loss < 0.0f || negative <= 0.0f ? 0.0f : scale / negative;
    return loss < 0.0f ? 0.0f : loss;  // fmaxf would lose NaN
}

// Return the sum of `value` over the block, added in a fixed order, in thread 0.
template <int threads>
__device__ __forceinline__ float block_sum(float value) {
    __shared__ float warps[threads / 32];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xffffffffu, value, distance);
    __syncthreads();  // all threads have read the sums of the previous call
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x >= 32) return 0.0f;
    value = threadIdx.x < threads / 32 ? warps[threadIdx.x] : 0.0f;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xffffffffu, value, distance);
    return value;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    loss_and_gradients(const T* __restrict__ anchor, const T* __restrict__ positive, const T* __restrict__ negative,
                       T* __restrict__ danchor, T* __restrict__ dpositive, T* __restrict__ dnegative,
                       float* __restrict__ losses, int rows, int cols, int micro) {
    // all tensors [rows][cols]; losses [rows]; one block per row
    __shared__ float factors[2];
    const size_t first = (size_t)blockIdx.x * cols;
    float near = 0.0f, far = 0.0f;
    for (int i = threadIdx.x; i < cols; i += BLOCK) {
        const float a = (float)anchor[first + i];
        const float p = difference(a, (float)positive[first + i]), n = difference(a, (float)negative[first + i]);
        near += p * p;
        far += n * n;
    }
    near = block_sum<BLOCK>(near);
    far = block_sum<BLOCK>(far);
    if (threadIdx.x == 0)
        losses[blockIdx.x] =
            loss_of_row(sqrtf(near), sqrtf(far), 1.0f / (float)((long long)rows * micro), factors[0], factors[1]);
    __syncthreads();
    near = factors[0];
    far = factors[1];
    for (int i = threadIdx.x; i < cols; i += BLOCK) {
        const float a = (float)anchor[first + i];
        const float p = difference(a, (float)positive[first + i]) * near;
        const float n = difference(a, (float)negative[first + i]) * far;
        danchor[first + i] = (T)(p - n);
        dpositive[first + i] = (T)-p;
        dnegative[first + i] = (T)n;
    }
}

extern "C" __global__ void __launch_bounds__(1024)
    mean_of_losses(const float* __restrict__ losses, float* __restrict__ loss, int rows, int micro) {
    // losses [rows]; loss [1]; one block of 1024 threads
    float sum = 0.0f, excess = 0.0f;  // Kahan summation, because many losses would lose digits
    for (int i = threadIdx.x; i < rows; i += 1024) {
        const float compensated = losses[i] - excess, next = sum + compensated;
        excess = (next - sum) - compensated;
        sum = next;
    }
    sum = block_sum<1024>(sum);
    if (threadIdx.x == 0) loss[0] = sum / (float)((long long)rows * micro);
}
