// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "double_buffer", "async_copy", "tensor_core",
// ]
// tile      = { m = "BM", n = "BN" }
// supports  = { bias = ["no", "yes"] }
// compute_capability = "8.0"
// define.BIAS = "bias == 'yes'"
//
// [[launch]]
// kernel = "linear_wgrad_mma"
// grid   = ["cdiv(n, BM) * cdiv(k + (1 if BIAS else 0), BN)"]
// block  = ["32 * (BM // WM) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
//
// [variant.mma_bf16]
// title     = "bf16 mma.sync with a cp.async pipeline; ldmatrix transposes both operands"
// builds_on = "register_tile"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// define    = { WM = "min(BM, 64)", N_ALIGNED = "n % 8 == 0", K_ALIGNED = "k % 8 == 0" }
// tune      = { BM = [128, 64], BN = [128, 64], WN = [32], STAGES = [3, 4] }
// where     = ["BM == BN", "STAGES == (3 if BM == 128 else 4)"]
//
// [variant.mma_tf32]
// title     = "TF32 mma.sync with a cp.async pipeline; operands are loaded from shared memory in 16-byte chunks"
// builds_on = "register_tile"
// product   = "tf32"
// define    = { WM = "64 if BM == 128 else 32", N_ALIGNED = "n % 4 == 0", K_ALIGNED = "k % 4 == 0" }
// tune      = { BM = [128, 64], BN = [128, 64], WN = [64, 32], STAGES = [3, 4] }
// where     = ["(BM, BN, WN, STAGES) in ((128, 128, 64, 3), (64, 64, 32, 4))"]
//
// [variant.mma_3xtf32]
// title     = "3xTF32 (mma.sync): operands split into two TF32 numbers, three products, float32 accuracy"
// builds_on = "mma_tf32"
// mechanism = ["operand_split"]
// product   = "tf32x3"
// requires  = ["m >= 4"]
// define    = { WM = "64 if BM == 128 else 32", N_ALIGNED = "n % 4 == 0", K_ALIGNED = "k % 4 == 0" }
// tune      = { BM = [128, 64], BN = [128, 64], WN = [32], STAGES = [4] }
// where     = ["BM == BN"]
// ///
//
// A product whose depth is the batch. Both operands are stored with the batch as rows: they are copied in their stored
// order and transposed on their way to registers, in bf16 by ldmatrix, in TF32 by the order of rows and columns. A
// column of ones after the last column yields the gradient of the bias. The gradient of the weights is float32 also for
// bf16, so the sums of the tensor core, which rounds them towards zero, are added in float every 256 products. Limit:
// for the batches of training, 32 to 256, writing dweight; for larger ones mma.sync. After CUTLASS 2's multistage
// kernels for Ampere; H. Ootomo and R. Yokota, Recovering single precision accuracy from Tensor Cores (2022).

#include <opbench/depth_rows.cuh>
#include <opbench/gradients.cuh>
#include <opbench/epilogue.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef DeepProduct<Format::PRODUCT> P;
typedef Block<P, BM, BN, WM, WN, STAGES> Tile;
typedef P::T T;
typedef DepthRows<Tile, WideA<Tile>, N_ALIGNED> Gradients;
typedef DepthRows<Tile, WideB<Tile>, K_ALIGNED, BIAS> Items;

// x [m][k], dout [m][n], dweight [n][k], dbias [n]
extern "C" __global__ void __launch_bounds__(Tile::threads)
    linear_wgrad_mma(const T* __restrict__ x, const T* __restrict__ dout, float* __restrict__ dweight,
#if BIAS
                     float* __restrict__ dbias,
#endif
                     int m, int n, int k) {
    extern __shared__ __align__(128) unsigned char shared[];
    const auto [m0, n0] = Tile::along_columns(k + BIAS);
    BothByDepth<Tile, Gradients, Items> rows(shared, Gradients(dout, m0, n, 0, m), Items(x, n0, k, 0, m));
    const DepthWarp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile>(sum, shared, (m + Tile::bk - 1) / Tile::bk, warp, rows);
    store_tile<Tile, false, false, DepthWarp<Tile>::Order>(sum, shared, dweight, (const T*)nullptr, m0 + warp.m,
                                                           n0 + warp.n, n, k);
#if BIAS
    store_column<Tile, DepthWarp<Tile>::Order>(sum, dbias, m0 + warp.m, n0 + warp.n, n, k);
#endif
}
