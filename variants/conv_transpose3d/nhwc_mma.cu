// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "double_buffer",
//     "async_copy", "tensor_core",
// ]
// tile      = { m = "BM", n = "BN" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"] }
// requires  = [
//     "t <= 10 and r <= 10 and s <= 10 and t * r * s <= 128",
//     "n * z * p * q * k < 2 ** 31 and n * z * p * q + BM < 2 ** 31",
//     "(((n * d + padding_d + t * dilation_d) * h + padding_h + r * dilation_h) * w + s * dilation_w) * c < 2 ** 31",
//     "(group_filters + BN) * (group_channels * t * r * s + 64) < 2 ** 31", "groups <= 65535",
//     "c * group_filters * t * r * s < 2 ** 31",
// ]
// compute_capability = "8.0"
// workspace = { packed = "cdiv(c * t * r * s * group_filters, 2 if dtype == 'bf16' else 1)" }
//
// [define]
// WM   = "32 if BM == 64 else 64"
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
// kernel = "conv_transpose3d_pack_rows"
// grid   = ["cdiv(c * t * r * s * group_filters, 256)"]
// block  = [256]
// setup  = true
// args   = ["weight", "packed", "group_channels", "group_filters", "t * r * s", "c * t * r * s * group_filters"]
//
// [[launch]]
// kernel = "conv_transpose3d_nhwc_mma"
// grid   = ["cdiv(class_outputs, BM) * stride_d * stride_h * stride_w * cdiv(group_filters, BN)", "groups"]
// block  = ["32 * (BM // WM) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["image", "packed", "bias?", "out", { struct = [
//     "n", "c", "d", "h", "w", "k", "t", "r", "s", "stride_d", "stride_h", "stride_w", "padding_d", "padding_h",
//     "padding_w", "dilation_d", "dilation_h", "dilation_w", "group_channels", "group_filters", "z", "p", "q",
// ] }]
//
// [variant.nhwc_mma_bf16]
// title     = "implicit GEMM per residue: bf16 mma.sync, cp.async pipeline of STAGES stages, swizzled shared memory"
// builds_on = "implicit_gemm"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// tune      = { BM = [128, 256, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN and BM <= 2 * BN", "STAGES == (3 if BM == 128 else 4)"]
// define.WN      = "32 if BN == 64 else 64"
// define.PER_SM  = "1 if BM == 256 else 3 if BN == 64 else 2"
// define.ALIGNED = "group_channels % 8 == 0"
//
// [variant.nhwc_mma_tf32]
// title     = "implicit GEMM per residue: TF32 mma.sync, cp.async pipeline; floats are rounded in registers"
// builds_on = "implicit_gemm"
// product   = "tf32"
// tune      = { BM = [128, 256, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN and BM <= 2 * BN", "STAGES == (3 if BM == 128 else 4)"]
// define.WN      = "32 if BN == 64 else 64"
// define.PER_SM  = "1 if BM == 256 else 3 if BN == 64 else 2"
// define.ALIGNED = "group_channels % 4 == 0"
//
// [variant.nhwc_mma_3xtf32]
// title     = "3xTF32 (mma.sync): operands split into two TF32 numbers, three products, float32 accuracy"
// builds_on = "nhwc_mma_tf32"
// mechanism = ["operand_split"]
// product   = "tf32x3"
// requires  = ["group_channels >= 4"]
// tune      = { BM = [128, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN", "STAGES == (3 if BM == 128 and BN == 64 else 4)"]
// define    = { WN = "32", PER_SM = "1 if BN == 128 else 2 if BM == 128 else 3", ALIGNED = "group_channels % 4 == 0" }
//
// [variant.nhwc_mma_tf32_corrected]
// title     = "float32 accuracy (mma.sync): one TF32 product plus two bf16 products of the TF32 rounding errors"
// builds_on = "nhwc_mma_3xtf32"
// mechanism = ["operand_split"]
// product   = "tf32_corrected"
// requires  = ["group_channels >= 128"]
// tune      = { BM = [128, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN", "STAGES == (3 if BM == 128 and BN == 64 else 4)"]
// define    = { WN = "32", PER_SM = "1 if BN == 128 else 2 if BM == 128 else 3", ALIGNED = "group_channels % 4 == 0" }
// ///
//
// The product of conv3d/nhwc_mma, for each remainder of an output's coordinates modulo the strides. Neighbouring blocks
// read the same voxels for other remainders, so the volume is read from HBM once. A first launch reorders the weight,
// so that the channels of a filter are contiguous. The address at which a row of a tile is stored is computed once for
// all its channels. If filters are as large as their strides, each output depends on one voxel, and the depth of the
// product is only the channels: then the prologue of the pipeline and the stores take as long as the products. Idea:
// CUTLASS, "strided dgrad".

#include <opbench/epilogue.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
#include <opbench/volume_rows.cuh>
using namespace opbench;

typedef Product<Format::PRODUCT> P;
typedef Block<P, BM, BN, WM, WN, STAGES> Tile;
typedef P::T T;

// weight [groups][channels][taps][filters] -> packed [groups][filters][taps][channels]
extern "C" __global__ void conv_transpose3d_pack_rows(const T* __restrict__ weight, T* __restrict__ packed,
                                                      int channels, int filters, int taps, int elements) {
    const int index = blockIdx.x * 256 + threadIdx.x;
    if (index >= elements) return;
    const int channel = index % channels, tap = index / channels % taps, filter = index / channels / taps % filters;
    const int group = index / channels / taps / filters;
    packed[index] = weight[((group * channels + channel) * taps + tap) * filters + filter];
}

// Return the row of the output, from a table of the block's rows.
struct TableRows {
    const int* places;
    int first, groups;
    __device__ __forceinline__ int operator()(int row) const { return places[row - first] * groups; }
};

// image [n][d][h][w][c], packed [k][t][r][s][group_channels], bias [k], out [n][z][p][q][k]
extern "C" __global__ void __launch_bounds__(Tile::threads, PER_SM)
    conv_transpose3d_nhwc_mma(const T* __restrict__ image, const T* __restrict__ packed,
#if BIAS
                              const T* __restrict__ bias,
#endif
                              T* __restrict__ out, VolumeSizes size) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ VolumeTables<BM> tables;
    __shared__ int places[BM], outputs;  // in shared memory, to leave registers for sums
    constexpr int classes = STRIDE_D * STRIDE_H * STRIDE_W;
    const int filters = size.group_filters, channels = size.group_channels, group = blockIdx.y;
    const int tiles_n = (filters + BN - 1) / BN, m0 = (int)(blockIdx.x / (tiles_n * classes)) * BM;
    const int n0 = (int)(blockIdx.x % tiles_n) * BN, residue = blockIdx.x / tiles_n % classes;
    const Volume volume =
        transposed_volume<STRIDE_D, STRIDE_H, STRIDE_W, DILATION_D, DILATION_H, DILATION_W>(size, residue);
    if (m0 >= volume.outputs()) return;
    if (threadIdx.x == 0) outputs = volume.outputs();
    for (int row = threadIdx.x; row < BM; row += Tile::threads)
        places[row] = volume.place(volume.output(m0 + row), size.z, size.p, size.q);
    tables.fill(size, volume, channels, m0);
    const int depth = size.t * size.r * size.s * channels;
    VolumeAndFilters<Tile, ALIGNED> rows(shared, image + group * channels,
                                         packed + ((size_t)group * filters + n0) * depth, tables, volume.taps(),
                                         channels, depth, filters - n0);
    const Warp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile>(sum, shared, (volume.taps() * channels + Tile::bk - 1) / Tile::bk, warp, rows);
    // Compute the values for the stores again, because the main loop has no registers left to keep them.
    const int tiles = (opaque(filters) + BN - 1) / BN;
    const int block = opaque(blockIdx.x), thread = opaque(threadIdx.x), first = opaque(blockIdx.y) * filters;
    const int row0 = block / (tiles * classes) * BM, warp_m = thread / 32 / Tile::warps_n * WM;
    const int column = block % tiles * BN + thread / 32 % Tile::warps_n * WN;
#if !BIAS
    const T* bias = nullptr;
#endif
    const int groups = size.k / filters;
    store_tile<Tile, BIAS, RELU>(sum, shared, out + first, bias + (BIAS ? first : 0), row0 + warp_m, column, outputs,
                                 filters, TableRows{places, row0, groups});
}
