// /// opbench
// title     = "one thread per output, flat grid; each filter element is tested for divisibility by the stride"
// mechanism = ["coalesced"]
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
//
// [[launch]]
// kernel = "conv_transpose3d_thread_per_output"
// grid   = ["cdiv(n * k * z * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["image", "weight", "bias?", "out", { struct = [
//     "n", "c", "d", "h", "w", "k", "t", "r", "s", "stride_d", "stride_h", "stride_w", "padding_d", "padding_h",
//     "padding_w", "dilation_d", "dilation_h", "dilation_w", "group_channels", "group_filters", "z", "p", "q",
// ] }]
// ///
//
// The first variant gathers: a thread adds up everything that contributes to its output, so no thread waits for another
// one and no addition is atomic. A voxel contributes to an output through a tap only if their distance is a multiple of
// the stride. Limit: with a stride of 2, three of four taps of an image are tested in vain, and each test is a
// division.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

struct Sizes {
    int n, c, d, h, w, k, t, r, s;
    int stride_d, stride_h, stride_w, padding_d, padding_h, padding_w, dilation_d, dilation_h, dilation_w;
    int group_channels, group_filters;  // channels that an output channel depends on; output channels of a group
    int z, p, q;                        // depth, height and width of the output
};

// image [n][c][d][h][w] or [n][d][h][w][c]; weight [c][group_filters][t][r][s] or [c][t][r][s][group_filters];
// bias [k]; out [n][k][z][p][q] or [n][z][p][q][k]
extern "C" __global__ void __launch_bounds__(BLOCK)
    conv_transpose3d_thread_per_output(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                                       const T* __restrict__ bias,
#endif
                                       T* __restrict__ out, Sizes size) {
    const unsigned index = blockIdx.x * BLOCK + threadIdx.x, voxels = size.z * size.p * size.q;
    if (index >= size.n * size.k * voxels) return;
    const int filter = NHWC ? index % size.k : index / voxels % size.k;
    const int number = index / (size.k * voxels), voxel = NHWC ? index / size.k % voxels : index % voxels;
    const int back = voxel / (size.p * size.q) + size.padding_d;
    const int bottom = voxel / size.q % size.p + size.padding_h, right = voxel % size.q + size.padding_w;
    const int group = filter / size.group_filters, group_filter = filter % size.group_filters;
    float sum = 0.0f;
    for (int a = 0; a < size.t; ++a) {
        const int z = back - a * size.dilation_d;
        if (z < 0 || z % size.stride_d != 0 || z / size.stride_d >= size.d) continue;
        for (int i = 0; i < size.r; ++i) {
            const int y = bottom - i * size.dilation_h;
            if (y < 0 || y % size.stride_h != 0 || y / size.stride_h >= size.h) continue;
            for (int j = 0; j < size.s; ++j) {
                const int x = right - j * size.dilation_w;
                if (x < 0 || x % size.stride_w != 0 || x / size.stride_w >= size.w) continue;
                const int tap = (a * size.r + i) * size.s + j, taps = size.t * size.r * size.s;
                for (int other = 0; other < size.group_channels; ++other) {
                    const int channel = group * size.group_channels + other;
                    const int plane = NHWC ? number : number * size.c + channel;
                    const int row = (plane * size.d + z / size.stride_d) * size.h + y / size.stride_h;
                    const int place = row * size.w + x / size.stride_w;
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
