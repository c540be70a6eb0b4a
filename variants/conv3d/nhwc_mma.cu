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
// ]
// define.WM   = "32 if BM == 64 else 64"
// define.BIAS = "epilogue != 'none'"
// define.RELU = "epilogue == 'bias_relu'"
// compute_capability = "8.0"
//
// [[launch]]
// kernel = "conv3d_nhwc_mma"
// grid   = ["cdiv(n * z * p * q, BM) * cdiv(group_filters, BN)", "groups"]
// block  = ["32 * (BM // WM) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["image", "weight", "bias?", "out", { struct = [
//     "n", "c", "d", "h", "w", "k", "t", "r", "s", "stride_d", "stride_h", "stride_w", "padding_d", "padding_h",
//     "padding_w", "dilation_d", "dilation_h", "dilation_w", "group_channels", "group_filters", "z", "p", "q",
// ] }]
//
// [variant.nhwc_mma_bf16]
// title     = "implicit GEMM: bf16 mma.sync, cp.async pipeline of STAGES stages, swizzled shared memory"
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
// title     = "implicit GEMM: TF32 mma.sync, cp.async pipeline; floats are rounded to TF32 in registers"
// builds_on = "implicit_gemm"
// product   = "tf32"
// tune      = { BM = [128, 256, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN and BM <= 2 * BN", "STAGES == (3 if BM == 128 else 4)"]
// define.WN      = "32 if BN == 64 else 64"
// define.PER_SM  = "1 if BM == 256 else 2"
// define.ALIGNED = "group_channels % 4 == 0"
//
// [variant.nhwc_mma_3xtf32]
// title     = "3xTF32 (mma.sync): operands split into two TF32 numbers, three products, float32 accuracy"
// builds_on = "nhwc_mma_tf32"
// mechanism = ["operand_split"]
// product   = "tf32x3"
// requires  = ["group_channels * t * r * s >= 4"]
// tune      = { BM = [128, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN", "STAGES == (3 if BM == 128 and BN == 64 else 4)"]
// define    = { WN = "32", PER_SM = "1 if BN == 128 else 2 if BM == 128 else 3", ALIGNED = "group_channels % 4 == 0" }
// ///
//
// The kernel of conv2d/nhwc_mma with a third axis, dilation and groups. The taps of the three axes and the channels of
// a group form one depth, so only its last step can contain zeros, and a bit mask for each output marks the taps that
// are inside the volume. Each group is a separate product. Limit: mma.sync for many channels; with few channels in a
// group, most of a tile is padding. Idea: CUTLASS, "implicit GEMM convolution".

#include <opbench/epilogue.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
#include <opbench/volume_rows.cuh>
using namespace opbench;

typedef Product<Format::PRODUCT> P;
typedef Block<P, BM, BN, WM, WN, STAGES> Tile;
typedef P::T T;

// image [n][d][h][w][c], weight [k][t][r][s][group_channels], bias [k], out [n][z][p][q][k]
extern "C" __global__ void __launch_bounds__(Tile::threads, PER_SM)
    conv3d_nhwc_mma(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                    const T* __restrict__ bias,
#endif
                    T* __restrict__ out, VolumeSizes size) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ VolumeTables<BM> tables;
    const Volume volume = forward_volume(size);
    const int filters = size.group_filters, channels = size.group_channels, group = blockIdx.y;
    const int tiles_n = (filters + BN - 1) / BN;  // neighbouring blocks share the rows of the image
    const int m0 = (int)(blockIdx.x / tiles_n) * BM, n0 = (int)(blockIdx.x % tiles_n) * BN;
    tables.fill(size, volume, channels, m0);
    const int depth = size.t * size.r * size.s * channels;
    VolumeAndFilters<Tile, ALIGNED> rows(shared, image + group * channels,
                                         weight + ((size_t)group * filters + n0) * depth, tables, volume.taps(),
                                         channels, depth, filters - n0);
    const Warp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile>(sum, shared, (depth + Tile::bk - 1) / Tile::bk, warp, rows);
    // Compute the values for the stores again, because the main loop has no registers left to keep them.
    const int tiles = (opaque(filters) + BN - 1) / BN;
    const int block = opaque(blockIdx.x), thread = opaque(threadIdx.x), first = opaque(blockIdx.y) * filters;
    const int row = block / tiles * BM + thread / 32 / Tile::warps_n * WM;
    const int column = block % tiles * BN + thread / 32 % Tile::warps_n * WN;
#if !BIAS
    const T* bias = nullptr;
#endif
    const int groups = size.k / filters;
    store_tile<Tile, BIAS, RELU>(sum, shared, out + first, bias + (BIAS ? first : 0), row, column, volume.outputs(),
                                 filters, GroupRows{groups});
}
