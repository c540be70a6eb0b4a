// /// opbench
// title     = "one thread per input pixel and channel, flat grid: coordinates by division and remainder"
// mechanism = ["coalesced"]
// tune      = { BLOCK = [256, 128, 512] }
// supports  = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
// requires  = ["n * c * p * q < 2 ** 31 and n * c * h * w < 2 ** 31"]
//
// [define]
// BF16 = "dtype == 'bf16'"
// NHWC = "layout == 'nhwc'"
//
// [[launch]]
// kernel = "depthwise_dgrad_thread_per_pixel"
// grid   = ["cdiv(n * c * h * w, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["dout", "weight", "dimage", "n", "c", "h", "w", "r", "s", "stride", "padding", "dilation", "p", "q"]
// ///
//
// The first variant: each pixel gathers from the outputs whose windows contain it, so no two threads add to the same
// element. Limits: divisions by the stride for each filter position, although only every stride-th position along each
// axis contributes, and loads of 2 or 4 bytes.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
    depthwise_dgrad_thread_per_pixel(const T* __restrict__ dout, const T* __restrict__ weight, T* __restrict__ dimage,
                                     int n, int c, int h, int w, int r, int s, int stride, int padding, int dilation,
                                     int p, int q) {
    // dout [n][c][p][q] or [n][p][q][c]; weight [c][r][s] or [r][s][c]; dimage as dout, with h w for p q
    const int index = blockIdx.x * BLOCK + threadIdx.x;
    if (index >= n * c * h * w) return;
    const int channel = NHWC ? index % c : index / (h * w) % c;
    const int pixel = NHWC ? index / c : index % (h * w), number = index / (c * h * w);
    const int y = pixel / w % h + padding, x = pixel % w + padding;
    float sum = 0.0f;
    for (int i = 0; i < r; ++i) {
        const int above = y - i * dilation, row = above / stride;
        if (above < 0 || above % stride != 0 || row >= p) continue;
        for (int j = 0; j < s; ++j) {
            const int before = x - j * dilation, column = before / stride;
            if (before < 0 || before % stride != 0 || column >= q) continue;
            const int from = NHWC ? ((number * p + row) * q + column) * c + channel
                                  : ((number * c + channel) * p + row) * q + column;
            sum += (float)dout[from] * (float)weight[NHWC ? (i * s + j) * c + channel : (channel * r + i) * s + j];
        }
    }
    dimage[index] = (T)sum;
}
