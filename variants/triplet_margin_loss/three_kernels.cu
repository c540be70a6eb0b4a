// /// opbench
// title     = "three kernels: distances and losses of the rows, their mean, the gradients"
// mechanism = ["coalesced", "block_reduction", "warp_shuffle"]
// tune      = { BLOCK = [256, 128, 512] }
// define    = { BF16 = "dtype == 'bf16'" }
// supports  = { dtype = ["f32", "bf16"] }
// requires  = ["rows * cols < 2 ** 32 - 1024"]
// workspace = { distances = "2 * rows", losses = "rows" }
//
// [[launch]]
// kernel = "distances_of_rows"
// grid   = ["rows"]
// block  = ["BLOCK"]
// args   = ["anchor", "positive", "negative", "distances", "losses", "rows", "cols"]
//
// [[launch]]
// kernel = "mean_of_losses"
// grid   = [1]
// block  = [1024]
// args   = ["losses", "loss", "rows", "micro"]
//
// [[launch]]
// kernel = "gradients_of_loss"
// grid   = ["cdiv(rows * cols, BLOCK)"]
// block  = ["BLOCK"]
// args   = [
//     "anchor", "positive", "negative", "distances", "danchor", "dpositive", "dnegative", "rows", "cols", "micro",
// ]
// ///
//
// The first variant, as a framework runs a loss: one kernel computes the distances, and in the backward pass another
// one computes the gradients from all inputs again. Limits: three arrays are read twice; 4 bytes (2 in bf16) per
// access.
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
    distances_of_rows(const T* __restrict__ anchor, const T* __restrict__ positive, const T* __restrict__ negative,
                      float* __restrict__ distances, float* __restrict__ losses, int rows, int cols) {
    // anchor, positive, negative [rows][cols]; distances [2][rows]; losses [rows]; one block per row
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
    if (threadIdx.x > 0) return;
    near = sqrtf(near);
    far = sqrtf(far);
    distances[blockIdx.x] = near;
    distances[rows + blockIdx.x] = far;
    const float loss = 1.0f + near - far;
    losses[blockIdx.x] = loss < 0.0f ? 0.0f : loss;
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

extern "C" __global__ void __launch_bounds__(BLOCK)
    gradients_of_loss(const T* __restrict__ anchor, const T* __restrict__ positive, const T* __restrict__ negative,
                      const float* __restrict__ distances, T* __restrict__ danchor, T* __restrict__ dpositive,
                      T* __restrict__ dnegative, int rows, int cols, int micro) {
    // all tensors [rows][cols]; distances [2][rows]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)rows * (unsigned)cols) return;
    const unsigned row = i / (unsigned)cols;
    float near, far;
    loss_of_row(distances[row], distances[rows + row], 1.0f / (float)((long long)rows * micro), near, far);
    const float a = (float)anchor[i];
    const float p = difference(a, (float)positive[i]) * near, n = difference(a, (float)negative[i]) * far;
    danchor[i] = (T)(p - n);
    dpositive[i] = (T)-p;
    dnegative[i] = (T)n;
}
