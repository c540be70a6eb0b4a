// /// opbench
// title     = "nhwc, few 1x1 filters: 16 bytes of channels per thread; the image is read once"
// builds_on = "implicit_gemm_split"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "unrolled", "compile_time_sizes",
//     "split_k", "few_channels",
// ]
// supports  = { layout = ["nhwc"], bias = ["no", "yes"], dtype = ["f32", "bf16"] }
// tune      = { BLOCK = [256], UNROLL = [4, 8, 2], SPLIT = [792, 2112] }
// workspace = { parts = "SPLIT * k * (c + BIAS)" }
// requires  = ["k <= 4", "r == 1 and s == 1 and stride == 1 and padding == 0", "LANES <= BLOCK", "n * h * w < 2 ** 30"]
//
// [define]
// BF16    = "dtype == 'bf16'"
// BIAS    = "1 if bias == 'yes' else 0"
// C       = "c"
// FILTERS = "k"
// VEC     = "(8 if dtype == 'bf16' else 4) if c % (8 if dtype == 'bf16' else 4) == 0 else 1"
// LANES   = "c // VEC"
//
// [[launch]]
// kernel = "conv2d_wgrad_nhwc_few_filters"
// grid   = ["SPLIT"]
// block  = ["BLOCK"]
// args   = ["image", "dout", "parts", "n * h * w"]
//
// [[launch]]
// kernel = "conv2d_wgrad_nhwc_add_few"
// grid   = ["cdiv(k * (c + BIAS), 32)"]
// block  = [32, 16]
// args   = ["parts", "dweight", "dbias?"]
// ///
//
// The last layer of a segmentation network has one filter: a matrix product with one row. A block of a matrix product
// would compute tiles of 64 rows, almost all for nothing. Here each image element is read once, for k multiply-adds.
// LANES threads read the channels of a pixel, VEC channels each with one load, and keep the sums in registers. They
// process a range of pixels with UNROLL loads in flight; all of them read the pixel's elements of dout from the L1
// cache. The sums of a block's threads are added in order, and those of SPLIT blocks by a second kernel in a fixed
// order: the same bits every time on every GPU. Limit: DRAM; expected to run at the rate of a plain sum.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int GROUPS = BLOCK / LANES;  // pixels that a block processes at once

union __align__(VEC * sizeof(T)) Channels {
    T elements[VEC];
    uint4 bits[1];
    __device__ Channels() {}
};

// Add up `count` pixels, GROUPS apart. All their loads are in flight before the first value is used.
template <int count>
__device__ __forceinline__ void add_pixels(float (&sum)[FILTERS][VEC], float (&bias)[FILTERS],
                                           const T* __restrict__ channels, const T* __restrict__ dout, int first) {
    Channels x[count];
    float gradient[count][FILTERS];
#pragma unroll
    for (int u = 0; u < count; ++u) {
        const size_t pixel = first + u * GROUPS;
        if (VEC > 1)
            x[u].bits[0] = __ldcs(reinterpret_cast<const uint4*>(channels + pixel * C));
        else
            x[u].elements[0] = channels[pixel * C];
#pragma unroll
        for (int k = 0; k < FILTERS; ++k) gradient[u][k] = (float)dout[pixel * FILTERS + k];
    }
#pragma unroll
    for (int u = 0; u < count; ++u)
#pragma unroll
        for (int k = 0; k < FILTERS; ++k) {
            bias[k] += gradient[u][k];
#pragma unroll
            for (int v = 0; v < VEC; ++v) sum[k][v] += gradient[u][k] * (float)x[u].elements[v];
        }
}

// image [pixels][C], dout [pixels][FILTERS], parts [SPLIT][FILTERS][C + BIAS]
extern "C" __global__ void __launch_bounds__(BLOCK)
    conv2d_wgrad_nhwc_few_filters(const T* __restrict__ image, const T* __restrict__ dout, float* __restrict__ parts,
                                  int pixels) {
    __shared__ float sums[GROUPS][C + BIAS];
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const int begin = (int)((long long)pixels * blockIdx.x / SPLIT);
    const int end = (int)((long long)pixels * (blockIdx.x + 1) / SPLIT);
    float sum[FILTERS][VEC] = {}, bias[FILTERS] = {};
    if (group < GROUPS) {
        int pixel = begin + group;
        const T* const channels = image + lane * VEC;
        for (; pixel + (UNROLL - 1) * GROUPS < end; pixel += UNROLL * GROUPS)
            add_pixels<UNROLL>(sum, bias, channels, dout, pixel);
        for (; pixel < end; pixel += GROUPS) add_pixels<1>(sum, bias, channels, dout, pixel);
    }
#pragma unroll
    for (int k = 0; k < FILTERS; ++k) {
        if (k > 0) __syncthreads();
        if (group < GROUPS) {
#pragma unroll
            for (int v = 0; v < VEC; ++v) sums[group][lane * VEC + v] = sum[k][v];
            if (BIAS && lane == 0) sums[group][C] = bias[k];
        }
        __syncthreads();
        for (int e = threadIdx.x; e < C + BIAS; e += BLOCK) {
            float total = 0.0f;
#pragma unroll
            for (int z = 0; z < GROUPS; ++z) total += sums[z][e];
            parts[((size_t)blockIdx.x * FILTERS + k) * (C + BIAS) + e] = total;
        }
    }
}

// parts [SPLIT][FILTERS][C + BIAS], dweight [FILTERS][C], dbias [FILTERS]; 32 sums a block, each by 16 threads
extern "C" __global__ void __launch_bounds__(512)
    conv2d_wgrad_nhwc_add_few(const float* __restrict__ parts, float* __restrict__ dweight
#if BIAS
                              ,
                              float* __restrict__ dbias
#endif
    ) {
    __shared__ float partial_sums[16][32];
    constexpr int total = FILTERS * (C + BIAS);
    const int index = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    if (index < total) {
#pragma unroll 8
        for (int z = threadIdx.y; z < SPLIT; z += 16) sum += parts[(size_t)z * total + index];
    }
    partial_sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || index >= total) return;
#pragma unroll
    for (int y = 1; y < 16; ++y) sum += partial_sums[y][threadIdx.x];
    const int k = index / (C + BIAS), channel = index % (C + BIAS);
    if (channel < C) dweight[k * C + channel] = sum;
#if BIAS
    if (channel == C) dbias[k] = sum;
#endif
}
