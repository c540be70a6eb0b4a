// /// opbench
// title     = "one thread per output, flat grid: coordinates by division and remainder"
// mechanism = ["coalesced"]
// tune      = { BLOCK = [256, 128, 512] }
// supports  = { layout = ["nchw", "nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32", "bf16"] }
// requires  = [
//     "n * k * z * p * q < 2 ** 31 and n * c * d * h * w < 2 ** 31", "k * group_channels * t * r * s < 2 ** 31",
// ]
//
// [define]
// BF16 = "dtype == 'bf16'"
// NHWC = "layout == 'nhwc'"
// BIAS = "epilogue != 'none'"
// RELU = "epilogue == 'bias_relu'"
//
// [[launch]]
// kernel = "conv3d_thread_per_output"
// grid   = ["cdiv(n * k * z * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["image", "weight", "bias?", "out", { struct = [
//     "n", "c", "d", "h", "w", "k", "t", "r", "s", "stride_d", "stride_h", "stride_w", "padding_d", "padding_h",
//     "padding_w", "dilation_d", "dilation_h", "dilation_w", "group_channels", "group_filters", "z", "p", "q",
// ] }]
// ///
//
// The first variant: the definition of the sum. Neighbouring lanes compute neighbouring outputs: voxels in nchw, output
// channels in nhwc. Limits: two loads and three border tests for each product, and divisions to compute the
// coordinates.
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

// image [n][c][d][h][w] or [n][d][h][w][c]; weight [k][group_channels][t][r][s] or [k][t][r][s][group_channels];
// bias [k]; out [n][k][z][p][q] or [n][z][p][q][k]
extern "C" __global__ void __launch_bounds__(BLOCK)
    conv3d_thread_per_output(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                             const T* __restrict__ bias,
#endif
                             T* __restrict__ out, Sizes size) {
    const unsigned index = blockIdx.x * BLOCK + threadIdx.x, voxels = size.z * size.p * size.q;
    if (index >= size.n * size.k * voxels) return;
    const int filter = NHWC ? index % size.k : index / voxels % size.k;
    const int number = index / (size.k * voxels), voxel = NHWC ? index / size.k % voxels : index % voxels;
    const int front = voxel / (size.p * size.q) * size.stride_d - size.padding_d;
    const int top = voxel / size.q % size.p * size.stride_h - size.padding_h;
    const int left = voxel % size.q * size.stride_w - size.padding_w;
    const int first = filter / size.group_filters * size.group_channels;  // the first channel of the group
    float sum = 0.0f;
    for (int channel = 0; channel < size.group_channels; ++channel) {
        for (int a = 0; a < size.t; ++a) {
            const int z = front + a * size.dilation_d;
            if (z < 0 || z >= size.d) continue;
            for (int i = 0; i < size.r; ++i) {
                const int y = top + i * size.dilation_h;
                if (y < 0 || y >= size.h) continue;
                for (int j = 0; j < size.s; ++j) {
                    const int x = left + j * size.dilation_w;
                    if (x < 0 || x >= size.w) continue;
                    const int plane = NHWC ? number : number * size.c + first + channel;
                    const int place = ((plane * size.d + z) * size.h + y) * size.w + x;
                    const int row = NHWC ? filter : filter * size.group_channels + channel;
                    const int tap = ((row * size.t + a) * size.r + i) * size.s + j;
                    sum += (float)image[NHWC ? place * size.c + first + channel : place] *
                           (float)weight[NHWC ? tap * size.group_channels + channel : tap];
                }
            }
        }
    }
#if BIAS
    sum += (float)bias[filter];
#endif
    out[index] = (T)(RELU ? fmaxf(sum, 0.0f) : sum);
}
