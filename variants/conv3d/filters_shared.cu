// /// opbench
// title     = "FILTERS output channels of one voxel per thread; their filters are in shared memory"
// builds_on = "filter_constant"
// mechanism = ["coalesced", "shared_memory_tile", "register_tile"]
// tune      = { FILTERS = [8, 4, 16], BLOCK = [128, 256] }
// supports  = { layout = ["nchw", "nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32", "bf16"] }
// requires  = [
//     "n * k * z * p * q + BLOCK < 2 ** 31 and n * c * d * h * w < 2 ** 31",
//     "groups * cdiv(group_filters, FILTERS) <= 65535",
// ]
//
// [define]
// BF16 = "dtype == 'bf16'"
// NHWC = "layout == 'nhwc'"
// BIAS = "epilogue != 'none'"
// RELU = "epilogue == 'bias_relu'"
// CHUNK = 512
//
// [[launch]]
// kernel = "conv3d_filters_shared"
// grid   = ["cdiv(n * z * p * q, BLOCK)", "groups * cdiv(group_filters, FILTERS)"]
// block  = ["BLOCK"]
// args   = ["image", "weight", "bias?", "out", { struct = [
//     "n", "c", "d", "h", "w", "k", "t", "r", "s", "stride_d", "stride_h", "stride_w", "padding_d", "padding_h",
//     "padding_w", "dilation_d", "dilation_h", "dilation_w", "group_channels", "group_filters", "z", "p", "q",
// ] }]
// ///
//
// An element of the volume is loaded once for FILTERS products. The filters come from shared memory, where all threads
// of a block read the same word. The depth of the sum is copied to shared memory in chunks of CHUNK elements, so
// filters of any size fit. Limit: one load for FILTERS products, and the index arithmetic of an element; in nhwc
// neighbouring threads read elements that are c apart.
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
    conv3d_filters_shared(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                          const T* __restrict__ bias,
#endif
                          T* __restrict__ out, Sizes size) {
    __shared__ float filters[CHUNK][FILTERS];
    const int parts = (size.group_filters + FILTERS - 1) / FILTERS, group = blockIdx.y / parts;
    const int filter0 = group * size.group_filters + blockIdx.y % parts * FILTERS;
    const int filter_count = min(FILTERS, (group + 1) * size.group_filters - filter0);
    const int taps = size.t * size.r * size.s, depth = size.group_channels * taps;
    const int voxels = size.z * size.p * size.q, index = blockIdx.x * BLOCK + threadIdx.x;
    const bool inside = index < size.n * voxels;
    const int number = index / voxels, voxel = index % voxels;
    const int front = voxel / (size.p * size.q) * size.stride_d - size.padding_d;
    const int top = voxel / size.q % size.p * size.stride_h - size.padding_h;
    const int left = voxel % size.q * size.stride_w - size.padding_w;
    float sum[FILTERS] = {};
    for (int start = 0; start < depth; start += CHUNK) {
        const int count = min(CHUNK, depth - start);
        __syncthreads();
        for (int e = threadIdx.x; e < count * FILTERS; e += BLOCK) {
            const int f = e / count, at = e % count;
            filters[at][f] = f < filter_count ? (float)weight[(size_t)(filter0 + f) * depth + start + at] : 0.0f;
        }
        __syncthreads();
        if (!inside) continue;
        for (int at = 0; at < count; ++at) {
            const int element = start + at;
            const int tap = NHWC ? element / size.group_channels : element % taps;
            const int channel = group * size.group_channels + (NHWC ? element % size.group_channels : element / taps);
            const int z = front + tap / (size.r * size.s) * size.dilation_d;
            const int y = top + tap / size.s % size.r * size.dilation_h;
            const int x = left + tap % size.s * size.dilation_w;
            if (z < 0 || z >= size.d || y < 0 || y >= size.h || x < 0 || x >= size.w) continue;
            const int plane = NHWC ? number : number * size.c + channel;
            const int place = ((plane * size.d + z) * size.h + y) * size.w + x;
            const float value = (float)image[NHWC ? place * size.c + channel : place];
#pragma unroll
            for (int f = 0; f < FILTERS; ++f) sum[f] += value * filters[at][f];
        }
    }
    if (!inside) return;
#pragma unroll
    for (int f = 0; f < FILTERS; ++f) {
        if (f >= filter_count) break;
#if BIAS
        sum[f] += (float)bias[filter0 + f];
#endif
        const float value = RELU ? fmaxf(sum[f], 0.0f) : sum[f];
        out[NHWC ? index * size.k + filter0 + f : (number * size.k + filter0 + f) * voxels + voxel] = (T)value;
    }
}
