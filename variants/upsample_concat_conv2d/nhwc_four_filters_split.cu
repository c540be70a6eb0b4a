// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "fewer_operations", "split_k", "double_buffer", "async_copy", "tensor_core",
// ]
// tile      = { m = "BM", n = "BN", split = "SPLIT" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"] }
// requires  = [
//     "r == 3 and s == 3 and padding == 1", "4 * n * h * w * max(c1, c2) < 2 ** 31", "n * h * w + BM < 2 ** 31",
//     "4 * (k + BN) * (9 * c2 + 4 * c1 + 64) < 2 ** 31", "SPLIT * n * h * w * k <= 2 ** 26",
// ]
// where     = ["BM == BN", "STAGES == (4 if BM == 64 else 3)", "SPLIT == (3 if BM == 64 else 4)"]
// define    = { WM = "32 if BM == 64 else 64", BIAS = "epilogue != 'none'", RELU = "epilogue == 'bias_relu'" }
// flops     = "8 * n * h * w * k * (9 * c2 + 4 * c1)"
// compute_capability = "8.0"
// tune      = { BM = [128, 64], BN = [128, 64], STAGES = [3, 4], SPLIT = [4, 3] }
//
// [workspace]
// filters = "k * (18 * c2 + 8 * c1) if dtype == 'bf16' else k * (36 * c2 + 16 * c1)"
// partial = "4 * SPLIT * n * h * w * k"
//
// [[launch]]
// kernel = "upsample_concat_conv2d_sum_filters"
// grid   = ["cdiv(4 * k * (9 * c2 + 4 * c1), 256)"]
// block  = [256]
// args   = ["weight", "filters", "k", "c1", "c2"]
// setup  = true
//
// [[launch]]
// kernel = "upsample_concat_conv2d_nhwc_four_filters_split"
// grid   = ["4 * cdiv(n * h * w, BM) * cdiv(k, BN)", "SPLIT"]
// block  = ["32 * (BM // WM) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["low", "skip", "filters", "partial", "n", "c1", "c2", "h", "w", "k"]
//
// [[launch]]
// kernel = "upsample_concat_conv2d_add_partials"
// grid   = ["cdiv(4 * n * h * w * k, 128 * (4 if k % 4 == 0 else 1))"]
// block  = [128]
// args   = ["bias?", "out", "partial", "4 * n * h * w * k", "k"]
//
// [variant.nhwc_four_filters_bf16_split]
// title     = "nhwc_four_filters_bf16 with split-K: SPLIT blocks per tile, partial sums added in fixed order"
// builds_on = "nhwc_four_filters_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["c1 % 8 == 0 and c2 % 8 == 0"]
// define    = { WN = "32 if BN == 64 else 64", PER_SM = "3 if BM == 64 else 2" }
//
// [variant.nhwc_four_filters_tf32_split]
// title     = "nhwc_four_filters_tf32 with split-K: SPLIT blocks per tile, partial sums added in fixed order"
// builds_on = "nhwc_four_filters_tf32"
// product   = "tf32"
// requires  = ["c1 % 4 == 0 and c2 % 4 == 0"]
// define    = { WN = "32 if BN == 64 else 64", PER_SM = "3 if BM == 64 else 2" }
//
// [variant.nhwc_four_filters_tf32_corrected_split]
// title     = "nhwc_four_filters_tf32_corrected with split-K: SPLIT blocks per tile, sums added in fixed order"
// builds_on = "nhwc_four_filters_tf32_corrected"
// mechanism = ["operand_split"]
// product   = "tf32_corrected"
// requires  = ["c1 % 4 == 0 and c2 % 4 == 0", "9 * c2 + 4 * c1 >= 128"]
// define    = { WN = "32", PER_SM = "3 if BM == 64 else 1" }
// ///
//
// For one image, UNet's deepest joined layer has 16 x 16 pixels of each parity and 512 filters: 128 tiles of 64 x 64.
// That is one block of four warps per multiprocessor, which waits for memory during the 8704 products of each sum. Here
// SPLIT blocks share a tile, each with a part of the depth, so that a multiprocessor has three blocks at once, or one
// of 128 x 128, which reads half as much from L2. A second kernel adds the partial sums in index order, so the result
// does not depend on timing. Limit: L2, and the partial sums. Idea: conv2d/nhwc_mma_split.

#include <opbench/epilogue.cuh>
#include <opbench/stride2_loader.cuh>
#include <opbench/partials.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Block<Product<Format::PRODUCT>, BM, BN, WM, WN, STAGES> Tile;
typedef Tile::T T;

// weight [k][3][3][c2 + c1], filters [4][k][9 c2 + 4 c1]
extern "C" __global__ void __launch_bounds__(256)
    upsample_concat_conv2d_sum_filters(const T* __restrict__ weight, T* __restrict__ filters, int k, int c1, int c2) {
    const int at = blockIdx.x * 256 + threadIdx.x;
    if (at < 4 * k * (9 * c2 + 4 * c1)) filters[at] = summed_filter(weight, at, k, c1, c2);
}

// low [n][h][w][c1], skip [n][2h][2w][c2], partial [SPLIT][n][2h][2w][k]
extern "C" __global__ void __launch_bounds__(Tile::threads, PER_SM)
    upsample_concat_conv2d_nhwc_four_filters_split(const T* __restrict__ low, const T* __restrict__ skip,
                                                   const T* __restrict__ filters, float* __restrict__ partial, int n,
                                                   int c1, int c2, int h, int w, int k) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ ParityWindows<BM> windows;
    const int tiles_n = (k + BN - 1) / BN;  // neighbouring blocks share the pixels: filters change first, then parities
    const int parity = blockIdx.x / tiles_n % 4;
    const int m0 = (int)(blockIdx.x / tiles_n / 4) * BM, n0 = (int)(blockIdx.x % tiles_n) * BN;
    const Parity size = {n, c1, c2, h, w, parity / 2, parity % 2};
    const SplitK part((size.depth() + Tile::bk - 1) / Tile::bk, blockIdx.y, SPLIT);
    ParityAndFilters<Tile> rows(shared, low, skip, filters + (size_t)parity * k * size.depth(), windows, size, m0, n0,
                                k, part.first * Tile::bk);
    const Warp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile>(sum, shared, part.steps, warp, rows);
    float* block_parts = partial + (size_t)blockIdx.y * 4 * size.pixels() * k;
    store_tile<Tile, false, false, InOrder>(sum, shared, block_parts, (const T*)nullptr, m0 + warp.m, n0 + warp.n,
                                            size.pixels(), k, size);
}

// partial [SPLIT][n][2h][2w][k], bias [k], out [n][2h][2w][k]
extern "C" __global__ void __launch_bounds__(128) upsample_concat_conv2d_add_partials(
#if BIAS
    const T* __restrict__ bias,
#endif
    T* __restrict__ out, const float* __restrict__ partial, int total, int k) {
#if !BIAS
    const T* bias = nullptr;
#endif
    add_partials<SPLIT, BIAS, RELU>(partial, bias, out, total, k);
}
