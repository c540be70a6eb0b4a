// /// opbench
// title    = "one thread per weight, which adds over all pixels of the batch"
// supports = { layout = ["nchw", "nhwc"], bias = ["no", "yes"], dtype = ["f32", "bf16"] }
// tune     = { BLOCK = [128, 32, 256] }
//
// [define]
// NHWC = "layout == 'nhwc'"
// BF16 = "dtype == 'bf16'"
// BIAS = "bias == 'yes'"
//
// [[launch]]
// kernel = "conv2d_wgrad_thread_per_weight"
// grid   = ["cdiv(k * c * r * s + (k if BIAS else 0), BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// Each thread computes one weight's gradient as the formula says, adding the pixels up in their order; threads after
// the last weight compute the gradient of the bias. Limit: a layer has few weights and many pixels (LeNet's first layer
// 150 and 100,352 at N=128), so most multiprocessors are idle while few threads wait for one load after another. In
// nhwc, neighbouring threads read neighbouring channels of one pixel. In nchw, the threads of one filter row read
// neighbouring pixels; the next filter row is about w elements away, the next channel a plane.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// nchw: image [n][c][h][w], dout [n][k][p][q], dweight [k][c][r][s]; nhwc: channels innermost; dbias [k]
extern "C" __global__ void __launch_bounds__(BLOCK)
    conv2d_wgrad_thread_per_weight(const T* __restrict__ image, const T* __restrict__ dout, float* __restrict__ dweight,
#if BIAS
                                   float* __restrict__ dbias,
#endif
                                   int n, int c, int h, int w, int k, int r, int s, int stride, int padding) {
    const int p = (h + 2 * padding - r) / stride + 1;
    const int q = (w + 2 * padding - s) / stride + 1;
    const size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x, weights = (size_t)k * c * r * s;
#if NHWC
    const size_t to_channel = 1, to_pixel = c, to_output = 1, to_column = k;
    const int channel = (int)(index % c), j = (int)(index / c % s), i = (int)(index / c / s % r);
#else
    const size_t to_channel = (size_t)h * w, to_pixel = 1, to_output = (size_t)p * q, to_column = 1;
    const int j = (int)(index % s), i = (int)(index / s % r), channel = (int)(index / s / r % c);
#endif
    float sum = 0.0f;
    if (index < weights) {
        const size_t output = index / s / r / c;
        for (int item = 0; item < n; ++item) {
            const T* plane = image + (size_t)item * c * h * w + channel * to_channel;
            const T* gradient = dout + (size_t)item * k * p * q + output * to_output;
            for (int row = 0; row < p; ++row) {
                const int y = row * stride + i - padding;
                if (y < 0 || y >= h) continue;
                for (int column = 0; column < q; ++column) {
                    const int x = column * stride + j - padding;
                    if (x < 0 || x >= w) continue;
                    sum += (float)gradient[((size_t)row * q + column) * to_column] *
                           (float)plane[((size_t)y * w + x) * to_pixel];
                }
            }
        }
        dweight[index] = sum;
    }
#if BIAS
    if (index < weights || index >= weights + k) return;
    for (int item = 0; item < n; ++item) {
        const T* gradient = dout + (size_t)item * k * p * q + (index - weights) * to_output;
        for (size_t pixel = 0; pixel < (size_t)p * q; ++pixel) sum += (float)gradient[pixel * to_column];
    }
    dbias[index - weights] = sum;
#endif
}
