// /// opbench
// title     = "one residue modulo the stride per block, so threads use equal filter elements; FILTERS channels each"
// builds_on = "reaching_taps"
// mechanism = ["compile_time_sizes", "register_tile"]
// tune      = { FILTERS = [8, 4, 16], BLOCK = [128, 256] }
// supports  = { layout = ["nchw", "nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32", "bf16"] }
// requires  = [
//     "n * k * z * p * q + BLOCK < 2 ** 31 and n * c * d * h * w < 2 ** 31",
//     "stride_d * stride_h * stride_w * groups * cdiv(group_filters, FILTERS) <= 65535",
//     "c * group_filters * t * r * s < 2 ** 31", "t * r * s <= 4096",
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
// kernel = "conv_transpose3d_residue_classes"
// grid   = [
//     "cdiv(class_outputs, BLOCK)", "stride_d * stride_h * stride_w * groups * cdiv(group_filters, FILTERS)",
// ]
// block  = ["BLOCK"]
// args   = ["image", "weight", "bias?", "out", { struct = [
//     "n", "c", "d", "h", "w", "k", "t", "r", "s", "padding_d", "padding_h", "padding_w", "group_channels",
//     "group_filters", "z", "p", "q",
// ] }]
// ///
//
// A block computes outputs whose coordinates have the same remainders after division by the stride. All its threads
// then use the same taps of the filter, so a warp reads each weight from one address, and each voxel is loaded once for
// FILTERS products. Limit: in nchw the outputs of a warp are `stride` elements apart, in nhwc its loads are c elements
// apart; and all weights come from the L1 cache.
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
    conv_transpose3d_residue_classes(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                                     const T* __restrict__ bias,
#endif
                                     T* __restrict__ out, Sizes size) {
    const int parts = (size.group_filters + FILTERS - 1) / FILTERS, part = blockIdx.y % parts;
    const int group = blockIdx.y / parts % (size.k / size.group_filters);
    const int residue = blockIdx.y / parts / (size.k / size.group_filters);
    const int first_d = residue / (STRIDE_H * STRIDE_W), first_h = residue / STRIDE_W % STRIDE_H;
    const int first_w = residue % STRIDE_W, group_filter = part * FILTERS,
              filter_count = min(FILTERS, size.group_filters - group_filter);
    const int depth = (size.z + STRIDE_D - 1) / STRIDE_D, height = (size.p + STRIDE_H - 1) / STRIDE_H;
    const int width = (size.q + STRIDE_W - 1) / STRIDE_W, index = blockIdx.x * BLOCK + threadIdx.x;
    const int number = index / (depth * height * width);
    const int oz = index / (height * width) % depth * STRIDE_D + first_d;
    const int oy = index / width % height * STRIDE_H + first_h, ox = index % width * STRIDE_W + first_w;
    if (number >= size.n || oz >= size.z || oy >= size.p || ox >= size.q) return;
    const ContributingTaps d = contributing_taps<STRIDE_D, DILATION_D>(oz + size.padding_d, size.t);
    const ContributingTaps h = contributing_taps<STRIDE_H, DILATION_H>(oy + size.padding_h, size.r);
    const ContributingTaps w = contributing_taps<STRIDE_W, DILATION_W>(ox + size.padding_w, size.s);
    const int taps = size.t * size.r * size.s;
    float sum[FILTERS] = {};
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
                    const float value = (float)image[NHWC ? place * size.c + channel : place];
                    const T* factor = weight + (NHWC ? (channel * taps + tap) * size.group_filters + group_filter
                                                     : (channel * size.group_filters + group_filter) * taps + tap);
#pragma unroll
                    for (int f = 0; f < FILTERS; ++f)
                        if (f < filter_count) sum[f] += value * (float)factor[f * (NHWC ? 1 : taps)];
                }
            }
        }
    }
    const int filter = group * size.group_filters + group_filter;
#pragma unroll
    for (int f = 0; f < FILTERS; ++f) {
        if (f >= filter_count) break;
#if BIAS
        sum[f] += (float)bias[filter + f];
#endif
        const int plane = NHWC ? number : number * size.k + filter + f;
        const int place = ((plane * size.z + oz) * size.p + oy) * size.q + ox;
        out[NHWC ? place * size.k + filter + f : place] = (T)(RELU ? fmaxf(sum[f], 0.0f) : sum[f]);
    }
}
