// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "split_k",
//     "double_buffer", "async_copy", "tensor_core",
// ]
// tile      = { m = "BM", n = "BN", split = "SPLIT" }
// supports  = { epilogue = ["none", "bias", "bias_relu", "bias_gelu_tanh", "bias_hardswish", "bias_hardsigmoid"] }
// requires  = ["SPLIT * m * n <= 2 ** 30"]
// where     = ["SPLIT == (2 if BM == 32 else 4) or (SPLIT == 8 and BM == 128)"]
// define.WM      = "min(BM, 64)"
// define.BIAS    = "epilogue != 'none'"
// define.EPILOGUE = "epilogue"
// compute_capability = "8.0"
// workspace = { parts = "SPLIT * m * n" }
//
// [[launch]]
// kernel = "linear_mma_parts"
// grid   = ["cdiv(m, BM) * cdiv(n, BN)", "SPLIT"]
// block  = ["32 * WK * (BM // WM) * (BN // WN)"]
// shared = "STAGES * WK * (BM + BN) * 128"
// args   = ["x", "weight", "parts", "m", "n", "k"]
//
// [[launch]]
// kernel = "linear_add_parts"
// grid   = ["cdiv(m * n, 128 * (4 if n % 4 == 0 else 1))"]
// block  = [128]
// args   = ["parts", "bias?", "out", "m * n", "n"]
//
// [variant.mma_bf16_split_k]
// title     = "mma_bf16 with split-K: SPLIT blocks per tile; a second kernel adds the partial sums"
// builds_on = "mma_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// define    = { ALIGNED = "k % 8 == 0" }
// tune      = { BM = [128, 64, 32], BN = [128, 64], WN = [64, 32], WK = [1, 2, 4], STAGES = [3, 4], SPLIT = [4, 8, 2] }
// where     = ["(BM, BN, WN, WK, STAGES) in ((128, 128, 64, 1, 3), (64, 64, 32, 2, 4), (32, 64, 32, 4, 3))"]
//
// [variant.mma_tf32_split_k]
// title     = "mma_tf32 with split-K: SPLIT blocks per tile; a second kernel adds the partial sums"
// builds_on = "mma_tf32"
// product   = "tf32"
// define    = { ALIGNED = "k % 4 == 0" }
// tune      = { BM = [128, 64, 32], BN = [128, 64], WN = [64, 32], WK = [1, 2, 4], STAGES = [3, 4], SPLIT = [4, 8, 2] }
// where     = ["(BM, BN, WN, WK, STAGES) in ((128, 128, 64, 1, 3), (64, 64, 32, 2, 4), (32, 64, 32, 4, 3))"]
//
// [variant.mma_3xtf32_split_k]
// title     = "mma_3xtf32 with split-K: SPLIT blocks per tile; a second kernel adds the partial sums"
// builds_on = "mma_3xtf32"
// mechanism = ["operand_split"]
// product   = "tf32x3"
// requires  = ["k >= 4"]
// define    = { ALIGNED = "k % 4 == 0" }
// tune      = { BM = [128, 64, 32], BN = [128, 64], WN = [32], WK = [1, 4], STAGES = [4, 3], SPLIT = [4, 8, 2] }
// where     = ["(BM, BN, WN, WK, STAGES) in ((128, 128, 32, 1, 4), (64, 128, 32, 1, 4), (32, 64, 32, 4, 3))"]
// ///
//
// A batch of 16 to 256 rows has only a few dozen tiles of 128 x 128, too few for all multiprocessors. With narrower
// tiles, x is read once per tile, which is more bytes from L2 than the weights have in DRAM. Here SPLIT blocks share a
// tile. Each block sums over its own range of k and stores partial sums in a workspace [SPLIT, m, n]. A second kernel
// adds them in a fixed order, adds the bias and applies ReLU. Limit: the partial sums are written and read once more,
// from L2, and there is a second launch. After "split K" in CUTLASS's efficient GEMM notes.

#include <opbench/matrix_rows.cuh>
#include <opbench/partials.cuh>
#include <opbench/products.cuh>
#include <opbench/slices.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Product<Format::PRODUCT> P;
typedef Block<P, BM, BN, WM, WN, STAGES, WK> Tile;
typedef P::T T;

// x [m][k], weight [n][k], parts [SPLIT][m][n]
extern "C" __global__ void __launch_bounds__(Tile::threads)
    linear_mma_parts(const T* __restrict__ x, const T* __restrict__ weight, float* __restrict__ parts, int m, int n,
                     int k) {
    extern __shared__ __align__(128) unsigned char shared[];
    const auto [m0, n0] = Tile::along_rows(m);
    const SplitK part((k + Tile::bk - 1) / Tile::bk, blockIdx.y, SPLIT);
    MatrixRows<Tile, ALIGNED> rows(shared, x, weight, m0, n0, m, n, k, part.first * Tile::bk,
                                   min(k, (part.first + part.steps) * Tile::bk));
    const Warp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile, P::slices == 1, true>(sum, shared, part.steps, warp, rows);
    float* const block_parts = parts + (size_t)blockIdx.y * m * n;
    if constexpr (WK > 1)
        store_slices<Tile, false, false>(sum, shared, warp, block_parts, nullptr, m0, n0, m, n);
    else
        store_tile<Tile, false, false>(sum, shared, block_parts, nullptr, m0 + warp.m, n0 + warp.n, m, n);
}

extern "C" __global__ void __launch_bounds__(128) linear_add_parts(const float* __restrict__ parts,
#if BIAS
                                                                   const T* __restrict__ bias,
#endif
                                                                   T* __restrict__ out, int total, int n) {
#if !BIAS
    const T* bias = nullptr;
#endif
    add_partials<SPLIT, BIAS, activation_of::EPILOGUE>(parts, bias, out, total, n);
}
