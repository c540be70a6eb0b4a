// The mean loss of a batch.
#pragma once

namespace opbench {

// Compute loss[0] = the sum of partial [count] / (rows * micro), for a batch of `micro` parts of `rows` rows. Call it
// in one block of 1024 threads.
__device__ __forceinline__ void store_mean_loss(const float* __restrict__ partial, float* __restrict__ loss, int count,
                                                int rows, int micro) {
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

}  // namespace opbench
