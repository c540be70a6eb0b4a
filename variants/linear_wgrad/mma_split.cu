// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "split_k",
//     "double_buffer", "async_copy", "tensor_core",
// ]
// tile      = { m = "BM", n = "BN", split = "SPLIT" }
// supports  = { bias = ["no", "yes"] }
// requires  = ["SPLIT * n * (k + 1) <= 2 ** 30"]
// where     = ["BM == BN"]
// compute_capability = "8.0"
// define.BIAS = "1 if bias == 'yes' else 0"
// workspace = { parts = "SPLIT * n * k", bias_parts = "SPLIT * n" }
//
// [[launch]]
// kernel = "linear_wgrad_mma_parts"
// grid   = ["cdiv(n, BM) * cdiv(k + BIAS, BN)", "SPLIT"]
// block  = ["32 * (BM // WM) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["x", "dout", "parts", "bias_parts", "m", "n", "k"]
//
// [[launch]]
// kernel = "linear_wgrad_mma_add_parts"
// grid   = ["cdiv(n * k, 128 * (4 if k % 4 == 0 else 1)) + BIAS * cdiv(n, 128)"]
// block  = [128]
// args   = ["parts", "bias_parts", "dweight", "dbias?", "n", "k"]
//
// [variant.mma_bf16_split]
// title     = "mma_bf16 with the batch split over SPLIT blocks per tile; a second kernel adds the partial sums"
// builds_on = "mma_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// define    = { WM = "min(BM, 64)", N_ALIGNED = "n % 8 == 0", K_ALIGNED = "k % 8 == 0" }
// tune      = { BM = [128, 64], BN = [128, 64], WN = [32], STAGES = [3, 4], SPLIT = [4, 16, 2] }
// where     = ["STAGES == (3 if BM == 128 else 4)"]
//
// [variant.mma_tf32_split]
// title     = "mma_tf32 with the batch split over SPLIT blocks per tile; a second kernel adds the partial sums"
// builds_on = "mma_tf32"
// product   = "tf32"
// define    = { WM = "64 if BM == 128 else 32", N_ALIGNED = "n % 4 == 0", K_ALIGNED = "k % 4 == 0" }
// tune      = { BM = [128, 64], BN = [128, 64], WN = [64, 32], STAGES = [3, 4], SPLIT = [4, 16, 2] }
// where     = ["(BM, WN, STAGES) in ((128, 64, 3), (64, 32, 4))"]
//
// [variant.mma_3xtf32_split]
// title     = "mma_3xtf32 with the batch split over SPLIT blocks per tile; a second kernel adds the partial sums"
// builds_on = "mma_3xtf32"
// mechanism = ["operand_split"]
// product   = "tf32x3"
// requires  = ["m >= 4"]
// define    = { WM = "64 if BM == 128 else 32", N_ALIGNED = "n % 4 == 0", K_ALIGNED = "k % 4 == 0" }
// tune      = { BM = [128, 64], BN = [128, 64], WN = [32], STAGES = [4], SPLIT = [4, 16, 2] }
// ///
//
// A layer with few weights and a large batch, such as a layer over the pixels of images, has few tiles. So SPLIT blocks
// share a tile: each adds up a part of the batch and stores it in a workspace, and a second kernel adds the parts in
// index order. The bits are the same every time and on every GPU. Limit: the parts are written and read once more,
// through L2, and there is a second launch; this does not pay off if there are many weights and a small batch. After
// "split K" in CUTLASS's efficient GEMM notes.

#include <opbench/depth_rows.cuh>
#include <opbench/gradients.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef DeepProduct<Format::PRODUCT> P;
typedef Block<P, BM, BN, WM, WN, STAGES> Tile;
typedef P::T T;
typedef DepthRows<Tile, WideA<Tile>, N_ALIGNED> Gradients;
typedef DepthRows<Tile, WideB<Tile>, K_ALIGNED, BIAS> Items;

// x [m][k], dout [m][n], parts [SPLIT][n][k], bias_parts [SPLIT][n]
extern "C" __global__ void __launch_bounds__(Tile::threads)
    linear_wgrad_mma_parts(const T* __restrict__ x, const T* __restrict__ dout, float* __restrict__ parts,
                           float* __restrict__ bias_parts, int m, int n, int k) {
    extern __shared__ __align__(128) unsigned char shared[];
    const auto [m0, n0] = Tile::along_columns(k + BIAS);
    const SplitK part((m + Tile::bk - 1) / Tile::bk, blockIdx.y, SPLIT);
    const int start = part.first * Tile::bk, end = min(m, (part.first + part.steps) * Tile::bk);
    BothByDepth<Tile, Gradients, Items> rows(shared, Gradients(dout, m0, n, start, end), Items(x, n0, k, start, end));
    const DepthWarp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile>(sum, shared, part.steps, warp, rows);
    float* const block_parts = parts + (size_t)blockIdx.y * n * k;
    store_tile<Tile, false, false, DepthWarp<Tile>::Order>(sum, shared, block_parts, (const T*)nullptr, m0 + warp.m,
                                                           n0 + warp.n, n, k);
    if (BIAS)
        store_column<Tile, DepthWarp<Tile>::Order>(sum, bias_parts + (size_t)blockIdx.y * n, m0 + warp.m, n0 + warp.n,
                                                   n, k);
}

// The parts in index order: of dweight [n][k], and by the last blocks of dbias [n].
extern "C" __global__ void __launch_bounds__(128)
    linear_wgrad_mma_add_parts(const float* __restrict__ parts, const float* __restrict__ bias_parts,
                               float* __restrict__ dweight,
#if BIAS
                               float* __restrict__ dbias,
#endif
                               int n, int k) {
#if !BIAS
    float* dbias = nullptr;
#endif
    add_weight_parts<SPLIT, BIAS>(parts, bias_parts, dweight, dbias, n, k);
}
