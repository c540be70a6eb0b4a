// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "split_k", "double_buffer",
//     "async_copy", "tensor_core",
// ]
// tile      = { m = "BM", n = "BN", split = "SPLIT" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "add", "mask"] }
// requires  = [
//     "stride == 1 and r == s", "r <= 15", "((n * p + r) * q + s) * k < 2 ** 31", "n * h * w + BM < 2 ** 31",
//     "(c + BN) * (k * r * s + 64) < 2 ** 31", "SPLIT * n * h * w * c <= 2 ** 28",
// ]
// where     = ["BM == BN", "STAGES == (6 if BM == 64 else 3)", "SPLIT == 4 or BM == 64"]
// compute_capability = "8.0"
//
// [define]
// WM       = "32 if BM == 64 else 64"
// EPILOGUE = "'plain' if epilogue == 'none' else epilogue"
// OTHER    = "epilogue != 'none'"
//
// [workspace]
// turned = "cdiv(k * c * r * s, 2) if dtype == 'bf16' else k * c * r * s"
// parts  = "SPLIT * n * h * w * c"
//
// [[launch]]
// kernel = "conv2d_dgrad_turn_filters"
// grid   = ["cdiv(k, 32) * cdiv(c, 32)", "r * s"]
// block  = [32, 8]
// args   = ["weight", "turned", "k", "c", "r * s"]
//
// [[launch]]
// kernel = "conv2d_dgrad_nhwc_mma_split"
// grid   = ["cdiv(n * h * w, BM) * cdiv(c, BN)", "SPLIT"]
// block  = ["32 * (BM // WM) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["dout", "turned", "parts", "n", "k", "p", "q", "c", "r", "r - 1 - padding"]
//
// [[launch]]
// kernel = "conv2d_dgrad_nhwc_add_parts"
// grid   = ["cdiv(n * h * w * c, 128 * (4 if n * h * w * c % 4 == 0 else 1))"]
// block  = [128]
// args   = ["parts", "skip?", "out?", "dimage", "n * h * w * c"]
//
// [variant.nhwc_mma_bf16_split]
// title     = "nhwc_mma_bf16 with split-K: SPLIT blocks per tile, partial sums added in fixed order"
// builds_on = "nhwc_mma_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// tune      = { BM = [64, 128], BN = [64, 128], STAGES = [6, 3], SPLIT = [4, 8] }
// define    = { WN = "32 if BN == 64 else 64", PER_SM = "2", ALIGNED = "k % 8 == 0" }
//
// [variant.nhwc_mma_tf32_split]
// title     = "nhwc_mma_tf32 with split-K: SPLIT blocks per tile, partial sums added in fixed order"
// builds_on = "nhwc_mma_tf32"
// mechanism = ["bank_conflict_free"]
// product   = "tf32"
// tune      = { BM = [64, 128], BN = [64, 128], STAGES = [6, 3], SPLIT = [8, 4] }
// define    = { WN = "32 if BN == 64 else 64", PER_SM = "2", ALIGNED = "k % 4 == 0" }
//
// [variant.nhwc_mma_3xtf32_split]
// title     = "nhwc_mma_3xtf32 with split-K: SPLIT blocks per tile, partial sums added in fixed order"
// builds_on = "nhwc_mma_3xtf32"
// mechanism = ["bank_conflict_free", "operand_split"]
// product   = "tf32x3"
// requires  = ["k * r * s >= 4"]
// tune      = { BM = [64, 128], BN = [64, 128], STAGES = [6, 3], SPLIT = [8, 4] }
// define    = { WN = "32", PER_SM = "1 if BM == 128 else 2", ALIGNED = "k % 4 == 0" }
//
// [variant.nhwc_mma_tf32_corrected_split]
// title     = "nhwc_mma_tf32_corrected with split-K: SPLIT blocks per tile, partial sums added in fixed order"
// builds_on = "nhwc_mma_tf32_corrected"
// mechanism = ["bank_conflict_free", "operand_split"]
// product   = "tf32_corrected"
// requires  = ["k * r * s >= 128"]
// tune      = { BM = [64, 128], BN = [64, 128], STAGES = [6, 3], SPLIT = [8, 4] }
// define    = { WN = "32", PER_SM = "1 if BM == 128 else 2", ALIGNED = "k % 4 == 0" }
// ///
//
// As in the forward variant conv2d/nhwc_mma_split: one image of a deep layer has few tiles but a long sum. So SPLIT
// blocks share a tile, and each stores the sums over its range of the depth in a workspace. A last kernel adds these
// partial sums in index order, whichever block finished first, and then adds an existing gradient or applies the mask.
// Limit: latency of the few steps of a block and of three launches. Idea: split-K of CUTLASS.

#include <opbench/gradients.cuh>
#include <opbench/image_rows.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Block<Product<Format::PRODUCT>, BM, BN, WM, WN, STAGES> Tile;
typedef Tile::T T;

// weight [k][positions][c], turned [c][positions][k], positions in reverse order
extern "C" __global__ void __launch_bounds__(256)
    conv2d_dgrad_turn_filters(const T* __restrict__ weight, T* __restrict__ turned, int k, int c, int positions) {
    turn_filters(weight, turned, k, c, positions);
}

// dout [n][p][q][k], turned [c][r][r][k], parts [SPLIT][n][h][w][c]; border: dout's padding
extern "C" __global__ void __launch_bounds__(Tile::threads, PER_SM)
    conv2d_dgrad_nhwc_mma_split(const T* __restrict__ dout, const T* __restrict__ turned, float* __restrict__ parts,
                                int n, int k, int p, int q, int c, int r, int border) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ Window windows[BM];
    const Image size(n, k, p, q, r, r, 1, border);
    const int tiles_n = (c + BN - 1) / BN;  // neighbouring blocks share the rows of dout, the larger operand
    const int m0 = (int)(blockIdx.x / tiles_n) * BM, n0 = (int)(blockIdx.x % tiles_n) * BN;
    const SplitK part((size.depth() + Tile::bk - 1) / Tile::bk, blockIdx.y, SPLIT);
    ImageAndFilters<Tile, ALIGNED> rows(shared, dout, turned, windows, size, m0, n0, c, part.first * Tile::bk);
    const Warp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile>(sum, shared, part.steps, warp, rows);
    float* block_parts = parts + (size_t)blockIdx.y * size.pixels() * c;
    store_tile<Tile, false, false>(sum, shared, block_parts, (const T*)nullptr, m0 + warp.m, n0 + warp.n, size.pixels(),
                                   c);
}

// parts [SPLIT][total], other (skip or out) and dimage [total]
extern "C" __global__ void __launch_bounds__(128) conv2d_dgrad_nhwc_add_parts(const float* __restrict__ parts,
#if OTHER
                                                                              const T* __restrict__ other,
#endif
                                                                              T* __restrict__ dimage, int total) {
#if !OTHER
    const T* other = nullptr;
#endif
    add_gradient_parts<SPLIT, EPILOGUE>(parts, dimage, other, total);
}
