// /// opbench
// title     = "one thread per output, which visits only the filter elements that reach it: no test in the loop"
// builds_on = "thread_per_output"
// mechanism = ["coalesced", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512] }
// supports  = { layout = ["nchw", "nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32", "bf16"] }
// requires  = [
//     "n * k * z * p * q < 2 ** 31 and n * c * d * h * w < 2 ** 31", "c * group_filters * t * r * s < 2 ** 31",
//     "t * r * s <= 4096",
// ]
//
// [define]
// BF16 = "dtype == 'bf16'"
// NHWC = "layout == 'nhwc'"
// BIAS = "epilogue != 'none'"
// RELU = "epilogue == 'bias_relu'"
// STRIDE_D = "stride_d"
// STRIDE_H = "stride_h"
// STRIDE_W = "stride_w"
// DILATION_D = "dilation_d"
// DILATION_H = "dilation_h"
// DILATION_W = "dilation_w"
//
// [[launch]]
// kernel = "conv_transpose3d_reaching_taps"
// grid   = ["cdiv(n * k * z * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["image", "weight", "bias?", "out", { struct = [
//     "n", "c", "d", "h", "w", "k", "t", "r", "s", "padding_d", "padding_h", "padding_w", "group_channels",
//     "group_filters", "z", "p", "q",
// ] }]
// ///
//
// Among stride / gcd(stride, dilation) consecutive taps, at most one contributes to an output, and the next one that
// contributes is that many taps later. So the taps of an output form a small filter over neighbouring voxels. Limit:
// two loads for each product; neighbouring threads of an nchw row use different taps, so they load different weights.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

struct Sizes {
    int n, c, d, h, w, k, t, r, s, padding_d, padding_h, padding_w;
    int group_channels, group_filters;  // channels that an output channel sees; output channels of a group
    int z, p, q;                        // depth, height and width of the output
};

// The taps along one axis that contribute to an output: tap `first`, and every `next`-th tap after it. `voxel` is the
// coordinate that tap `first` reads; each following tap reads `step` voxels before it.
struct ContributingTaps { int first, next, voxel, step; };

template <int stride, int dilation>
__device__ __forceinline__ ContributingTaps contributing_taps(int place, int taps) {
    int divisor = stride;  // becomes the greatest common divisor, by Euclid's algorithm
    for (int other = dilation; other != 0;) {
        const int rest = divisor % other;
        divisor = other, other = rest;
    }
    const int next = stride / divisor;
    for (int j = 0; j < next && j < taps; ++j)
        if ((place - j * dilation) % stride == 0) return {j, next, (place - j * dilation) / stride, dilation / divisor};
    return {taps, next, 0, 0};
}

// image [n][c][d][h][w] or [n][d][h][w][c]; weight [c][group_filters][t][r][s] or [c][t][r][s][group_filters];
// bias [k]; out [n][k][z][p][q] or [n][z][p][q][k]
extern "C" __global__ void __launch_bounds__(BLOCK)
    conv_transpose3d_reaching_taps(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                                   const T* __restrict__ bias,
#endif
                                   T* __restrict__ out, Sizes size) {
    const unsigned index = blockIdx.x * BLOCK + threadIdx.x, voxels = size.z * size.p * size.q;
    if (index >= size.n * size.k * voxels) return;
    const int filter = NHWC ? index % size.k : index / voxels % size.k;
    const int number = index / (size.k * voxels), voxel = NHWC ? index / size.k % voxels : index % voxels;
    const ContributingTaps d =
        contributing_taps<STRIDE_D, DILATION_D>(voxel / (size.p * size.q) + size.padding_d, size.t);
    const ContributingTaps h =
        contributing_taps<STRIDE_H, DILATION_H>(voxel / size.q % size.p + size.padding_h, size.r);
    const ContributingTaps w = contributing_taps<STRIDE_W, DILATION_W>(voxel % size.q + size.padding_w, size.s);
    const int group = filter / size.group_filters, group_filter = filter % size.group_filters;
    const int taps = size.t * size.r * size.s;
    float sum = 0.0f;
    for (int channel = group * size.group_channels; channel < (group + 1) * size.group_channels; ++channel) {
        const int plane = NHWC ? number : number * size.c + channel;
        for (int a = d.first, z = d.voxel; a < size.t; a += d.next, z -= d.step) {
            if (z < 0 || z >= size.d) continue;
            for (int i = h.first, y = h.voxel; i < size.r; i += h.next, y -= h.step) {
                if (y < 0 || y >= size.h) continue;
                for (int j = w.first, x = w.voxel; j < size.s; j += w.next, x -= w.step) {
                    if (x < 0 || x >= size.w) continue;
                    const int place = ((plane * size.d + z) * size.h + y) * size.w + x;
                    const int tap = (a * size.r + i) * size.s + j;
                    sum += (float)image[NHWC ? place * size.c + channel : place] *
                           (float)weight[NHWC ? (channel * taps + tap) * size.group_filters + group_filter
                                              : (channel * size.group_filters + group_filter) * taps + tap];
                }
            }
        }
    }
#if BIAS
    sum += (float)bias[filter];
#endif
    out[index] = (T)(RELU ? fmaxf(sum, 0.0f) : sum);
}
