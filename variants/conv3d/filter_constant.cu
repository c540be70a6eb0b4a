// /// opbench
// title     = "filter size, strides and dilations as compile-time constants: the filter loops are unrolled"
// builds_on = "thread_per_output"
// mechanism = ["coalesced", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512] }
// supports  = { layout = ["nchw", "nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32", "bf16"] }
// requires  = [
//     "n * k * z * p * q < 2 ** 31 and n * c * d * h * w < 2 ** 31", "k * group_channels * t * r * s < 2 ** 31",
//     "t * r * s <= 128",
// ]
//
// [define]
// BF16 = "dtype == 'bf16'"
// NHWC = "layout == 'nhwc'"
// BIAS = "epilogue != 'none'"
// RELU = "epilogue == 'bias_relu'"
// TAPS_D = "t"
// TAPS_H = "r"
// TAPS_W = "s"
// STRIDE_D = "stride_d"
// STRIDE_H = "stride_h"
// STRIDE_W = "stride_w"
// DILATION_D = "dilation_d"
// DILATION_H = "dilation_h"
// DILATION_W = "dilation_w"
//
// [[launch]]
// kernel = "conv3d_filter_constant"
// grid   = ["cdiv(n * k * z * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["image", "weight", "bias?", "out", { struct = [
//     "n", "c", "d", "h", "w", "k", "padding_d", "padding_h", "padding_w", "group_channels", "group_filters", "z", "p",
//     "q",
// ] }]
// ///
//
// The loads of a filter row are in flight together, no product waits for a comparison of the loop, and the bounds of a
// plane or row of the filter are tested once. Limit: still two loads for each product.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

struct Sizes {
    int n, c, d, h, w, k, padding_d, padding_h, padding_w;
    int group_channels, group_filters;  // channels that an output channel depends on; output channels of a group
    int z, p, q;                        // depth, height and width of the output
};

// image [n][c][d][h][w] or [n][d][h][w][c]; weight [k][group_channels][t][r][s] or [k][t][r][s][group_channels];
// bias [k]; out [n][k][z][p][q] or [n][z][p][q][k]
extern "C" __global__ void __launch_bounds__(BLOCK)
    conv3d_filter_constant(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                           const T* __restrict__ bias,
#endif
                           T* __restrict__ out, Sizes size) {
    const unsigned index = blockIdx.x * BLOCK + threadIdx.x, voxels = size.z * size.p * size.q;
    if (index >= size.n * size.k * voxels) return;
    const int filter = NHWC ? index % size.k : index / voxels % size.k;
    const int number = index / (size.k * voxels), voxel = NHWC ? index / size.k % voxels : index % voxels;
    const int front = voxel / (size.p * size.q) * STRIDE_D - size.padding_d;
    const int top = voxel / size.q % size.p * STRIDE_H - size.padding_h;
    const int left = voxel % size.q * STRIDE_W - size.padding_w;
    const int first = filter / size.group_filters * size.group_channels;  // the first channel of the group
    float sum = 0.0f;
    for (int channel = 0; channel < size.group_channels; ++channel) {
#pragma unroll
        for (int a = 0; a < TAPS_D; ++a) {
            const int z = front + a * DILATION_D;
            if (z < 0 || z >= size.d) continue;
#pragma unroll
            for (int i = 0; i < TAPS_H; ++i) {
                const int y = top + i * DILATION_H;
                if (y < 0 || y >= size.h) continue;
#pragma unroll
                for (int j = 0; j < TAPS_W; ++j) {
                    const int x = left + j * DILATION_W;
                    const int plane = NHWC ? number : number * size.c + first + channel;
                    const int place = ((plane * size.d + z) * size.h + y) * size.w + x;
                    const int row = NHWC ? filter : filter * size.group_channels + channel;
                    const int tap = ((row * TAPS_D + a) * TAPS_H + i) * TAPS_W + j;
                    const bool inside = x >= 0 && x < size.w;
                    const float value = inside ? (float)image[NHWC ? place * size.c + first + channel : place] : 0.0f;
                    sum += value * (float)weight[NHWC ? tap * size.group_channels + channel : tap];
                }
            }
        }
    }
#if BIAS
    sum += (float)bias[filter];
#endif
    out[index] = (T)(RELU ? fmaxf(sum, 0.0f) : sum);
}
