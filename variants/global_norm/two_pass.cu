// /// opbench
// title     = "two kernels: a sum of squares per block, then their sum in fixed order"
// mechanism = ["coalesced", "block_reduction", "warp_shuffle"]
// tune      = { BLOCK = [256, 128, 512], ITEMS = [8, 4] }
// workspace = { partial = "cdiv(n, BLOCK * ITEMS)" }
//
// [[launch]]
// kernel = "squares_to_partials"
// grid   = ["cdiv(n, BLOCK * ITEMS)"]
// block  = ["BLOCK"]
// args   = ["gradient", "partial", "n"]
//
// [[launch]]
// kernel = "norm_of_partials"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["partial", "limit", "norm", "factor", "cdiv(n, BLOCK * ITEMS)"]
// ///
//
// The first variant. The number of blocks depends only on n, not on the GPU, and the sums of the blocks are added in a
// fixed order, so the bits are the same every time. The factor is computed on the device, so the host does not wait for
// it. Limit: 4 bytes per access.

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

extern "C" __global__ void __launch_bounds__(BLOCK)
    squares_to_partials(const float* __restrict__ gradient, float* __restrict__ partial, int n) {
    // gradient [n]; partial: one sum per block
    const unsigned first = blockIdx.x * (BLOCK * ITEMS) + threadIdx.x;
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const unsigned i = first + k * BLOCK;
        if (i < (unsigned)n) sum += gradient[i] * gradient[i];
    }
    sum = block_sum<BLOCK>(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(1024)
    norm_of_partials(const float* __restrict__ partial, const float* __restrict__ limit, float* __restrict__ norm,
                     float* __restrict__ factor, int count) {
    // partial [count]; limit, norm, factor [1]; one block of 1024 threads
    float sum = 0.0f;
    for (int i = threadIdx.x; i < count; i += 1024) sum += partial[i];
    sum = block_sum<1024>(sum);
    if (threadIdx.x != 0) return;
    const float root = sqrtf(sum), ratio = limit[0] / (root + 1e-6f);
    norm[0] = root;
    factor[0] = ratio >= 1.0f ? 1.0f : ratio;  // NaN stays NaN
}
