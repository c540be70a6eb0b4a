// /// opbench
// title     = "one thread per output, flat grid: coordinates by division and remainder"
// mechanism = ["coalesced"]
// tune      = { BLOCK = [256, 128, 512] }
// supports.layout   = ["nchw", "nhwc"]
// supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish"]
// supports.dtype    = ["f32", "bf16"]
// requires  = ["n * c * p * q < 2 ** 31 and n * c * h * w < 2 ** 31"]
//
// [define]
// BF16 = "dtype == 'bf16'"
// NHWC = "layout == 'nhwc'"
// BIAS = "epilogue != 'none'"
// RELU = "epilogue == 'bias_relu'"
// HARDSWISH = "epilogue == 'bias_hardswish'"
//
// [[launch]]
// kernel = "depthwise_thread_per_output"
// grid   = ["cdiv(n * c * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = [
//     "image", "weight", "bias?", "out", "n", "c", "h", "w", "r", "s", "stride", "padding", "dilation", "p", "q",
// ]
// ///
//
// The first variant: the definition of the sum. Neighbouring lanes compute neighbouring outputs: pixels in nchw,
// channels in nhwc. Limits: a few divisions to compute the coordinates, a border test for each product, and loads of 2
// or 4 bytes, r * s of the image for each output.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
    depthwise_thread_per_output(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                                const T* __restrict__ bias,
#endif
                                T* __restrict__ out, int n, int c, int h, int w, int r, int s, int stride, int padding,
                                int dilation, int p, int q) {
    // image [n][c][h][w] or [n][h][w][c]; weight [c][r][s] or [r][s][c]; out as image, with p q for h w
    const int index = blockIdx.x * BLOCK + threadIdx.x;
    if (index >= n * c * p * q) return;
    const int channel = NHWC ? index % c : index / (p * q) % c;
    const int pixel = NHWC ? index / c : index % (p * q), number = index / (c * p * q);
    const int y = pixel / q % p * stride - padding, x = pixel % q * stride - padding;
    float sum = 0.0f;
    for (int i = 0; i < r; ++i) {
        for (int j = 0; j < s; ++j) {
            const int row = y + i * dilation, column = x + j * dilation;
            if (row < 0 || row >= h || column < 0 || column >= w) continue;
            const int from = NHWC ? ((number * h + row) * w + column) * c + channel
                                  : ((number * c + channel) * h + row) * w + column;
            sum += (float)image[from] * (float)weight[NHWC ? (i * s + j) * c + channel : (channel * r + i) * s + j];
        }
    }
#if BIAS
    sum += (float)bias[channel];
#endif
    if (RELU) sum = fmaxf(sum, 0.0f);
    if (HARDSWISH) sum *= fminf(fmaxf(sum + 3.0f, 0.0f), 6.0f) / 6.0f;
    out[index] = (T)sum;
}
