// /// opbench
// title     = "filter size as a compile-time constant: loops are unrolled, bounds of rows and columns tested once"
// builds_on = "thread_per_output"
// mechanism = ["coalesced", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512] }
// supports.layout   = ["nchw", "nhwc"]
// supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish"]
// supports.dtype    = ["f32", "bf16"]
// requires  = ["n * c * p * q < 2 ** 31 and n * c * h * w < 2 ** 31", "r * s <= 121"]
//
// [define]
// BF16 = "dtype == 'bf16'"
// NHWC = "layout == 'nhwc'"
// BIAS = "epilogue != 'none'"
// RELU = "epilogue == 'bias_relu'"
// HARDSWISH = "epilogue == 'bias_hardswish'"
// R = "r"
// S = "s"
// STRIDE = "stride"
// DILATION = "dilation"
//
// [[launch]]
// kernel = "depthwise_filter_constant"
// grid   = ["cdiv(n * c * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["image", "weight", "bias?", "out", "n", "c", "h", "w", "padding", "p", "q"]
// ///
//
// All loads of a filter row are in flight together, and no product waits for a comparison of the loop. Limit: still r *
// s loads of 2 or 4 bytes for each output.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
    depthwise_filter_constant(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                              const T* __restrict__ bias,
#endif
                              T* __restrict__ out, int n, int c, int h, int w, int padding, int p, int q) {
    // image [n][c][h][w] or [n][h][w][c]; weight [c][R][S] or [R][S][c]; out as image, with p q for h w
    const int index = blockIdx.x * BLOCK + threadIdx.x;
    if (index >= n * c * p * q) return;
    const int channel = NHWC ? index % c : index / (p * q) % c;
    const int pixel = NHWC ? index / c : index % (p * q), number = index / (c * p * q);
    const int y = pixel / q % p * STRIDE - padding, x = pixel % q * STRIDE - padding, step = NHWC ? c : 1;
    const T* plane = image + (NHWC ? number * h * w * c + channel : (number * c + channel) * h * w);
    const T* filter = weight + (NHWC ? channel : channel * R * S);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < R; ++i) {
        const int row = y + i * DILATION;
        if (row < 0 || row >= h) continue;
#pragma unroll
        for (int j = 0; j < S; ++j) {
            const int column = x + j * DILATION;
            const float value = column >= 0 && column < w ? (float)plane[(row * w + column) * step] : 0.0f;
            sum += value * (float)filter[(i * S + j) * step];
        }
    }
#if BIAS
    sum += (float)bias[channel];
#endif
    if (RELU) sum = fmaxf(sum, 0.0f);
    if (HARDSWISH) sum *= fminf(fmaxf(sum + 3.0f, 0.0f), 6.0f) / 6.0f;
    out[index] = (T)sum;
}
