// /// opbench
// title    = "one thread per weight, which adds over all pixels of the batch"
// supports = { layout = ["nchw", "nhwc"], bias = ["no", "yes"], dtype = ["f32", "bf16"] }
// tune     = { BLOCK = [128, 32, 256] }
// requires = ["n * c * h * w < 2 ** 31"]
//
// [define]
// BF16 = "dtype == 'bf16'"
// NHWC = "layout == 'nhwc'"
// BIAS = "bias == 'yes'"
//
// [[launch]]
// kernel = "depthwise_wgrad_thread_per_weight"
// grid   = ["cdiv(c * r * s + (c if BIAS else 0), BLOCK)"]
// block  = ["BLOCK"]
// args   = [
//     "image", "dout", "dweight", "dbias?", "n", "c", "h", "w", "r", "s", "stride", "padding", "dilation", "p", "q",
// ]
// ///
//
// The first variant: each thread computes one weight's gradient as the formula says, adding the pixels up in their
// order; threads after the last weight compute the gradient of the bias. Limit: a layer has few weights and many
// pixels, so most of the GPU is idle while few threads wait for one load after another.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
    depthwise_wgrad_thread_per_weight(const T* __restrict__ image, const T* __restrict__ dout,
                                      float* __restrict__ dweight,
#if BIAS
                                      float* __restrict__ dbias,
#endif
                                      int n, int c, int h, int w, int r, int s, int stride, int padding, int dilation,
                                      int p, int q) {
    // image [n][c][h][w] or [n][h][w][c]; dout as image, with p q for h w; dweight [c][r][s] or [r][s][c]
    const int index = blockIdx.x * BLOCK + threadIdx.x, weights = c * r * s;
    if (index >= weights + (BIAS ? c : 0)) return;
    const bool is_weight = index < weights;
    const int channel = !is_weight ? index - weights : NHWC ? index % c : index / (r * s);
    const int position = NHWC ? index / c : index % (r * s), i = position / s, j = position % s;
    float sum = 0.0f;
    for (int number = 0; number < n; ++number) {
        for (int y = 0; y < p; ++y) {
            for (int x = 0; x < q; ++x) {
                const int at =
                    NHWC ? ((number * p + y) * q + x) * c + channel : ((number * c + channel) * p + y) * q + x;
                if (!is_weight) {
                    sum += (float)dout[at];
                    continue;
                }
                const int row = y * stride - padding + i * dilation, column = x * stride - padding + j * dilation;
                if (row < 0 || row >= h || column < 0 || column >= w) continue;
                const int from = NHWC ? ((number * h + row) * w + column) * c + channel
                                      : ((number * c + channel) * h + row) * w + column;
                sum += (float)dout[at] * (float)image[from];
            }
        }
    }
#if BIAS
    if (!is_weight) {
        dbias[channel] = sum;
        return;
    }
#endif
    dweight[index] = sum;
}
