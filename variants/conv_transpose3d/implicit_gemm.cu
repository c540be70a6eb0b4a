// /// opbench
// title     = "implicit GEMM with register tiles, one per residue modulo the stride: a convolution with stride 1"
// builds_on = "residue_classes"
// mechanism = ["coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "double_buffer"]
// tile      = { m = "BM", n = "BN", k = "BK" }
// tune      = { BM = [64, 128], BN = [128, 64], BK = [16, 8] }
// where     = ["BK == 8 or BM * BN == 64 * 128"]
// supports  = { epilogue = ["none", "bias", "bias_relu"], dtype = ["f32", "bf16"] }
// requires  = [
//     "n * k * z * p * q + BN < 2 ** 31", "n * c * d * h * w < 2 ** 31", "(group_channels + 16) * d * h * w < 2 ** 31",
//     "(c + 16) * t * r * s * (group_filters + 4) < 2 ** 31", "t * r * s <= 4096",
//     "cdiv(group_filters, BM) <= 65535 and groups * stride_d * stride_h * stride_w <= 65535",
// ]
// workspace = { packed = "c * t * r * s * cdiv(group_filters, 4) * 4" }
//
// [define]
// BF16  = "dtype == 'bf16'"
// BIAS  = "epilogue != 'none'"
// RELU  = "epilogue == 'bias_relu'"
// FOURS = "z * p * q % 4 == 0 and stride_d * stride_h * stride_w == 1"
// STRIDE_D = "stride_d"
// STRIDE_H = "stride_h"
// STRIDE_W = "stride_w"
// DILATION_D = "dilation_d"
// DILATION_H = "dilation_h"
// DILATION_W = "dilation_w"
//
// [[launch]]
// kernel = "conv_transpose3d_pack_weights"
// grid   = ["cdiv(c * t * r * s * cdiv(group_filters, 4) * 4, 256)"]
// block  = [256]
// setup  = true
// args   = [
//     "weight", "packed", "group_channels", "group_filters", "t * r * s", "cdiv(group_filters, 4) * 4",
//     "c * t * r * s * cdiv(group_filters, 4) * 4",
// ]
//
// [[launch]]
// kernel = "conv_transpose3d_implicit_gemm"
// grid   = ["cdiv(class_outputs, BN)", "cdiv(group_filters, BM)", "groups * stride_d * stride_h * stride_w"]
// block  = ["BM * BN // 64"]
// args   = ["packed", "image", "bias?", "out", { struct = [
//     "n", "c", "d", "h", "w", "k", "t", "r", "s", "stride_d", "stride_h", "stride_w", "padding_d", "padding_h",
//     "padding_w", "dilation_d", "dilation_h", "dilation_w", "group_channels", "group_filters", "z", "p", "q",
// ] }]
// ///
//
// Outputs whose coordinates have the same remainders after division by the stride use every stride-th tap on
// neighbouring voxels. So they are the output of a convolution, and the matrix product of conv3d/implicit_gemm.cu
// computes it. There are no products with zeros, which a convolution over an image with inserted zeros would have.
// Limits: the multiply-add rate; with a stride, the stores of a warp are `stride` elements apart, and the L2 cache
// combines them.

#include <opbench/vectors.cuh>
#include <opbench/volume_tiles.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef SquareTiles<BM, BN> Tiles;  // 8 x 8 outputs per thread

// weight [groups][channels][filters][taps] -> packed [groups][taps][channels][pitch], zero beyond the filters
extern "C" __global__ void conv_transpose3d_pack_weights(const T* __restrict__ weight, float* __restrict__ packed,
                                                         int channels, int filters, int taps, int pitch, int elements) {
    const int index = blockIdx.x * 256 + threadIdx.x;
    if (index >= elements) return;
    const int filter = index % pitch, channel = index / pitch % channels, tap = index / pitch / channels % taps;
    const int group = index / pitch / channels / taps;
    const int from = ((group * channels + channel) * filters + filter) * taps + tap;
    packed[index] = filter < filters ? (float)weight[from] : 0.0f;
}

// image [n][c][d][h][w], bias [k], out [n][k][z][p][q]
extern "C" __global__ void __launch_bounds__(Tiles::threads, Tiles::resident)
    conv_transpose3d_implicit_gemm(const float* __restrict__ packed, const T* __restrict__ image,
#if BIAS
                                   const T* __restrict__ bias,
#endif
                                   T* __restrict__ out, VolumeSizes size) {
#if !BIAS
    const T* bias = nullptr;
#endif
    constexpr int classes = STRIDE_D * STRIDE_H * STRIDE_W;
    const int residue = blockIdx.z % classes, group = blockIdx.z / classes;
    const Volume volume =
        transposed_volume<STRIDE_D, STRIDE_H, STRIDE_W, DILATION_D, DILATION_H, DILATION_W>(size, residue);
    const int voxels = size.d * size.h * size.w, pitch = (size.group_filters + 3) / 4 * 4;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = blockIdx.y * BM, column0 = blockIdx.x * BN;
    if (column0 >= volume.outputs()) return;
    const int row = warp / Tiles::warps_n * 32 + lane / Tiles::lanes_n * 4;
    const int column = warp % Tiles::warps_n * 64 + lane % Tiles::lanes_n * 4;
    float sum[8][8] = {};
    multiply_volume<BM, BN, BK>(packed + (size_t)group * size.t * size.r * size.s * size.group_channels * pitch,
                                image + (size_t)group * size.group_channels * voxels, size, volume, pitch,
                                size.c * voxels, row0, column0, row, column, sum);
    store_volume<Tiles, BIAS, RELU, FOURS>(sum, out, bias, size, volume, group * size.group_filters, row0 + row,
                                           column0 + column);
}
