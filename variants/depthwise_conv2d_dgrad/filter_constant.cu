// /// opbench
// title     = "filter size and stride as compile-time constants: loops are unrolled, divisions become shifts"
// builds_on = "thread_per_pixel"
// mechanism = ["coalesced", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512] }
// supports  = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
// requires  = ["n * c * p * q < 2 ** 31 and n * c * h * w < 2 ** 31", "r * s <= 121"]
//
// [define]
// BF16 = "dtype == 'bf16'"
// NHWC = "layout == 'nhwc'"
// R = "r"
// S = "s"
// STRIDE = "stride"
// DILATION = "dilation"
//
// [[launch]]
// kernel = "depthwise_dgrad_filter_constant"
// grid   = ["cdiv(n * c * h * w, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["dout", "weight", "dimage", "n", "c", "h", "w", "padding", "p", "q"]
// ///
//
// All loads of a filter row are in flight together. Limit: still one load of 2 or 4 bytes for each filter position.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
    depthwise_dgrad_filter_constant(const T* __restrict__ dout, const T* __restrict__ weight, T* __restrict__ dimage,
                                    int n, int c, int h, int w, int padding, int p, int q) {
    // dout [n][c][p][q] or [n][p][q][c]; weight [c][R][S] or [R][S][c]; dimage as dout, with h w for p q
    const int index = blockIdx.x * BLOCK + threadIdx.x;
    if (index >= n * c * h * w) return;
    const int channel = NHWC ? index % c : index / (h * w) % c;
    const int pixel = NHWC ? index / c : index % (h * w), number = index / (c * h * w);
    const int y = pixel / w % h + padding, x = pixel % w + padding, step = NHWC ? c : 1;
    const T* plane = dout + (NHWC ? number * p * q * c + channel : (number * c + channel) * p * q);
    const T* filter = weight + (NHWC ? channel : channel * R * S);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < R; ++i) {
        const int above = y - i * DILATION, row = above / STRIDE;
        if (above < 0 || above % STRIDE != 0 || row >= p) continue;
#pragma unroll
        for (int j = 0; j < S; ++j) {
            const int before = x - j * DILATION, column = before / STRIDE;
            const bool inside = before >= 0 && before % STRIDE == 0 && column < q;
            const float value = inside ? (float)plane[(row * q + column) * step] : 0.0f;
            sum += value * (float)filter[(i * S + j) * step];
        }
    }
    dimage[index] = (T)sum;
}
