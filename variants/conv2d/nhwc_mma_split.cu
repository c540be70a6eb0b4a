// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "split_k",
//     "double_buffer", "async_copy", "tensor_core", "overlapped_launch",
// ]
// tile      = { m = "BM", n = "BN", split = "SPLIT" }
// supports.layout   = ["nhwc"]
// supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish", "bias_hardsigmoid", "bias_add", "bias_add_relu"]
// requires  = [
//     "r <= 16 and s <= 15", "((n * h + r) * w + s) * c < 2 ** 31", "n * p * q + BM < 2 ** 31",
//     "(k + BN) * (c * r * s + 64) < 2 ** 31", "SPLIT * n * p * q * k <= 2 ** 28",
// ]
// where     = ["BM == BN", "STAGES == (6 if BM == 64 else 3)", "SPLIT == 4 or BM == 64"]
// define.WM       = "32 if BM == 64 else 64"
// define.BIAS     = "epilogue != 'none'"
// define.RESIDUAL = "'add' in epilogue"
// define.EPILOGUE = "epilogue"
// compute_capability = "8.0"
// workspace = { partial = "SPLIT * n * p * q * k" }
//
// [[launch]]
// kernel = "conv2d_nhwc_mma_split"
// grid   = ["cdiv(n * p * q, BM) * cdiv(k, BN)", "SPLIT"]
// block  = ["32 * (BM // WM) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["image", "weight", "partial", "n", "c", "h", "w", "k", "r", "s", "stride", "padding"]
// programmatic = true
//
// [[launch]]
// kernel = "conv2d_nhwc_add_partials"
// grid   = ["cdiv(n * p * q * k, 128 * (4 if k % 4 == 0 else 1))"]
// block  = [128]
// args   = ["bias?", "residual?", "out", "partial", "n * p * q * k", "k"]
// programmatic = true
//
// [variant.nhwc_mma_bf16_split]
// title     = "nhwc_mma_bf16 with split-K: SPLIT blocks per tile, partial sums added in fixed order"
// builds_on = "nhwc_mma_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// tune      = { BM = [64, 128], BN = [64, 128], STAGES = [6, 3], SPLIT = [4, 8] }
// define    = { WN = "32 if BN == 64 else 64", PER_SM = "2", ALIGNED = "c % 8 == 0" }
//
// [variant.nhwc_mma_tf32_split]
// title     = "nhwc_mma_tf32 with split-K: SPLIT blocks per tile, partial sums added in fixed order"
// builds_on = "nhwc_mma_tf32"
// product   = "tf32"
// tune      = { BM = [64, 128], BN = [64, 128], STAGES = [6, 3], SPLIT = [8, 4] }
// define    = { WN = "32 if BN == 64 else 64", PER_SM = "2", ALIGNED = "c % 4 == 0" }
//
// [variant.nhwc_mma_3xtf32_split]
// title     = "nhwc_mma_3xtf32 with split-K: SPLIT blocks per tile, partial sums added in fixed order"
// builds_on = "nhwc_mma_3xtf32"
// mechanism = ["operand_split"]
// product   = "tf32x3"
// requires  = ["c * r * s >= 4"]
// tune      = { BM = [64, 128], BN = [64, 128], STAGES = [6, 3], SPLIT = [8, 16, 4] }
// where     = ["(BM, SPLIT) != (64, 4)"]
// define    = { WN = "32", PER_SM = "1 if BM == 128 else 2", ALIGNED = "c % 4 == 0" }
//
// [variant.nhwc_mma_tf32_corrected_split]
// title     = "nhwc_mma_tf32_corrected with split-K: SPLIT blocks per tile, partial sums added in fixed order"
// builds_on = "nhwc_mma_tf32_corrected"
// mechanism = ["operand_split"]
// product   = "tf32_corrected"
// requires  = ["c * r * s >= 128"]
// tune      = { BM = [64, 128], BN = [64, 128], STAGES = [6, 3], SPLIT = [8, 4, 16] }
// define    = { WN = "32", PER_SM = "1 if BM == 128 else 2", ALIGNED = "c % 4 == 0" }
// ///
//
// One image of a deep layer has few tiles (12 x 12 pixels x 384 channels: 18 tiles of 64 x 64, for 132 multiprocessors)
// but a long sum. So SPLIT blocks share a tile; each sums over its own range of the depth and stores partial sums in a
// workspace. A second kernel adds the SPLIT partial sums in index order, so that the result does not depend on timing,
// and applies the epilogue. Limit: latency of the few steps of a block and of the second launch. Idea: split-K of
// CUTLASS.

#include <opbench/epilogue.cuh>
#include <opbench/image_rows.cuh>
#include <opbench/overlap.cuh>
#include <opbench/partials.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Block<Product<Format::PRODUCT>, BM, BN, WM, WN, STAGES> Tile;
typedef Tile::T T;

// image [n][h][w][c], weight [k][r][s][c], partial [SPLIT][n][p][q][k]
extern "C" __global__ void __launch_bounds__(Tile::threads, PER_SM)
    conv2d_nhwc_mma_split(const T* image, const T* __restrict__ weight, float* __restrict__ partial, int n, int c,
                          int h, int w, int k, int r, int s, int stride, int padding) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ Window windows[BM];
    const Image size(n, c, h, w, r, s, stride, padding);
    const int tiles_n = (k + BN - 1) / BN;  // neighbouring blocks share the rows of the image, the larger operand
    const int m0 = (int)(blockIdx.x / tiles_n) * BM, n0 = (int)(blockIdx.x % tiles_n) * BN;
    const SplitK part((size.depth() + Tile::bk - 1) / Tile::bk, blockIdx.y, SPLIT);
    let_next_launch_start();
    wait_for_launches_before();
    ImageAndFilters<Tile, ALIGNED> rows(shared, image, weight, windows, size, m0, n0, k, part.first * Tile::bk);
    const Warp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile>(sum, shared, part.steps, warp, rows);
    float* block_parts = partial + (size_t)blockIdx.y * size.pixels() * k;
    store_tile<Tile, false, false>(sum, shared, block_parts, (const T*)nullptr, m0 + warp.m, n0 + warp.n, size.pixels(),
                                   k);
}

// partial [SPLIT][n][p][q][k], bias [k], residual and out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(128) conv2d_nhwc_add_partials(
#if BIAS
    const T* __restrict__ bias,
#endif
#if RESIDUAL
    const T* residual,
#endif
    T* __restrict__ out, const float* partial, int total, int k) {
#if !BIAS
    const T* bias = nullptr;
#endif
#if RESIDUAL
    const Residual<T> added{residual};
#else
    const NoResidual added;
#endif
    let_next_launch_start();
    wait_for_launches_before();
    add_partials<SPLIT, BIAS, activation_of::EPILOGUE>(partial, bias, out, total, k, added);
}
