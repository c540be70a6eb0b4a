// /// opbench
// title     = "implicit GEMM with register tiles: the volume is gathered directly, one product per group"
// builds_on = "filters_shared"
// mechanism = ["coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "double_buffer"]
// tile      = { m = "BM", n = "BN", k = "BK" }
// tune      = { BM = [64, 128], BN = [128, 64], BK = [16, 8] }
// where     = ["BK == 8 or BM * BN == 64 * 128"]
// supports  = { epilogue = ["none", "bias", "bias_relu"], dtype = ["f32", "bf16"] }
// requires  = [
//     "n * k * z * p * q + BN < 2 ** 31", "n * c * d * h * w < 2 ** 31", "(group_channels + 16) * d * h * w < 2 ** 31",
//     "(c + 16) * t * r * s * (group_filters + 4) < 2 ** 31", "cdiv(group_filters, BM) <= 65535 and groups <= 65535",
// ]
// workspace = { packed = "c * t * r * s * cdiv(group_filters, 4) * 4" }
//
// [define]
// BF16  = "dtype == 'bf16'"
// BIAS  = "epilogue != 'none'"
// RELU  = "epilogue == 'bias_relu'"
// FOURS = "z * p * q % 4 == 0"
//
// [[launch]]
// kernel = "conv3d_pack_weights"
// grid   = ["cdiv(c * t * r * s * cdiv(group_filters, 4) * 4, 256)"]
// block  = [256]
// setup  = true
// args   = [
//     "weight", "packed", "group_channels", "group_filters", "t * r * s", "cdiv(group_filters, 4) * 4",
//     "c * t * r * s * cdiv(group_filters, 4) * 4",
// ]
//
// [[launch]]
// kernel = "conv3d_implicit_gemm"
// grid   = ["cdiv(n * z * p * q, BN)", "cdiv(group_filters, BM)", "groups"]
// block  = ["BM * BN // 64"]
// args   = ["packed", "image", "bias?", "out", { struct = [
//     "n", "c", "d", "h", "w", "k", "t", "r", "s", "stride_d", "stride_h", "stride_w", "padding_d", "padding_h",
//     "padding_w", "dilation_d", "dilation_h", "dilation_w", "group_channels", "group_filters", "z", "p", "q",
// ] }]
// ///
//
// 4 loads of 16 bytes from shared memory serve 64 products. A thread loads elements of one voxel, so address and border
// test change once per filter position, not once per element. A first kernel packs the filters with the output channels
// innermost. Limit: the multiply-add rate; with few channels in a group, part of each step is zeros, and with few
// output channels, part of each tile. Idea: Chetlur et al., cuDNN (2014).

#include <opbench/vectors.cuh>
#include <opbench/volume_tiles.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef SquareTiles<BM, BN> Tiles;  // 8 x 8 outputs per thread

// weight [groups][filters][channels][taps] -> packed [groups][taps][channels][pitch], zeros after the last filter
extern "C" __global__ void conv3d_pack_weights(const T* __restrict__ weight, float* __restrict__ packed, int channels,
                                               int filters, int taps, int pitch, int elements) {
    const int index = blockIdx.x * 256 + threadIdx.x;
    if (index >= elements) return;
    const int filter = index % pitch, channel = index / pitch % channels, tap = index / pitch / channels % taps;
    const int group = index / pitch / channels / taps;
    const int from = ((group * filters + filter) * channels + channel) * taps + tap;
    packed[index] = filter < filters ? (float)weight[from] : 0.0f;
}

// image [n][c][d][h][w], bias [k], out [n][k][z][p][q]
extern "C" __global__ void __launch_bounds__(Tiles::threads, Tiles::resident)
    conv3d_implicit_gemm(const float* __restrict__ packed, const T* __restrict__ image,
#if BIAS
                         const T* __restrict__ bias,
#endif
                         T* __restrict__ out, VolumeSizes size) {
#if !BIAS
    const T* bias = nullptr;
#endif
    const Volume volume = forward_volume(size);
    const int group = blockIdx.z, voxels = size.d * size.h * size.w, pitch = (size.group_filters + 3) / 4 * 4;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = blockIdx.y * BM, column0 = blockIdx.x * BN;
    const int row = warp / Tiles::warps_n * 32 + lane / Tiles::lanes_n * 4;
    const int column = warp % Tiles::warps_n * 64 + lane % Tiles::lanes_n * 4;
    float sum[8][8] = {};
    multiply_volume<BM, BN, BK>(packed + (size_t)group * size.t * size.r * size.s * size.group_channels * pitch,
                                image + (size_t)group * size.group_channels * voxels, size, volume, pitch,
                                size.c * voxels, row0, column0, row, column, sum);
    store_volume<Tiles, BIAS, RELU, FOURS>(sum, out, bias, size, volume, group * size.group_filters, row0 + row,
                                           column0 + column);
}
