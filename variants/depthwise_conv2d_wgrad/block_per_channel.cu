// /// opbench
// title     = "one block per channel: threads split the pixels, and each adds for all weights"
// builds_on = "thread_per_weight"
// mechanism = ["block_reduction", "compile_time_sizes", "register_tile", "warp_shuffle"]
// supports  = { layout = ["nchw", "nhwc"], bias = ["no", "yes"], dtype = ["f32", "bf16"] }
// tune      = { BLOCK = [256, 128, 512] }
// requires  = ["n * c * h * w < 2 ** 31", "r * s <= 49"]
//
// [define]
// BF16 = "dtype == 'bf16'"
// NHWC = "layout == 'nhwc'"
// BIAS = "bias == 'yes'"
// R = "r"
// S = "s"
// STRIDE = "stride"
// DILATION = "dilation"
//
// [[launch]]
// kernel = "depthwise_wgrad_block_per_channel"
// grid   = ["c"]
// block  = ["BLOCK"]
// args   = ["image", "dout", "dweight", "dbias?", "n", "c", "h", "w", "padding", "p", "q"]
// ///
//
// An element of dout is loaded once for all weights. Neighbouring threads read neighbouring pixels, which are
// contiguous in nchw. Shuffles and shared memory add the sums of the threads in a fixed order. Limits: only as many
// blocks as channels; in nhwc each load takes a whole sector for one channel.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int SUMS = R * S + BIAS;

extern "C" __global__ void __launch_bounds__(BLOCK)
    depthwise_wgrad_block_per_channel(const T* __restrict__ image, const T* __restrict__ dout,
                                      float* __restrict__ dweight,
#if BIAS
                                      float* __restrict__ dbias,
#endif
                                      int n, int c, int h, int w, int padding, int p, int q) {
    // image [n][c][h][w] or [n][h][w][c]; dout as image, with p q for h w; dweight [c][R][S] or [R][S][c]
    __shared__ float warps[BLOCK / 32][SUMS];
    const int channel = blockIdx.x, step = NHWC ? c : 1;
    float sums[SUMS] = {};
    for (int index = threadIdx.x; index < n * p * q; index += BLOCK) {
        const int number = index / (p * q), pixel = index % (p * q);
        const int y = pixel / q * STRIDE - padding, x = pixel % q * STRIDE - padding;
        const T* plane = image + (NHWC ? number * h * w * c + channel : (number * c + channel) * h * w);
        const T* from = dout + (NHWC ? number * p * q * c + channel : (number * c + channel) * p * q);
        const float gradient = (float)from[pixel * step];
#pragma unroll
        for (int i = 0; i < R; ++i) {
#pragma unroll
            for (int j = 0; j < S; ++j) {
                const int row = y + i * DILATION, column = x + j * DILATION;
                const bool inside = row >= 0 && row < h && column >= 0 && column < w;
                if (inside) sums[i * S + j] += gradient * (float)plane[(row * w + column) * step];
            }
        }
        if (BIAS) sums[SUMS - 1] += gradient;
    }
#pragma unroll
    for (int k = 0; k < SUMS; ++k) {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) sums[k] += __shfl_xor_sync(0xffffffffu, sums[k], offset);
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32][k] = sums[k];
    }
    __syncthreads();
    for (int k = threadIdx.x; k < SUMS; k += BLOCK) {
        float sum = 0.0f;
        for (int warp = 0; warp < BLOCK / 32; ++warp) sum += warps[warp][k];
#if BIAS
        if (k == SUMS - 1) {
            dbias[channel] = sum;
            continue;
        }
#endif
        dweight[NHWC ? k * c + channel : channel * (R * S) + k] = sum;
    }
}
