// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "double_buffer", "async_copy", "tensor_core",
// ]
// tile      = { m = "BM", n = "BN" }
// supports  = { epilogue = ["none", "bias", "bias_relu", "bias_gelu_tanh", "bias_hardswish", "bias_hardsigmoid"] }
// define.WM      = "min(BM, 64)"
// define.BIAS    = "epilogue != 'none'"
// define.EPILOGUE = "epilogue"
// compute_capability = "8.0"
//
// [[launch]]
// kernel = "linear_mma"
// grid   = ["cdiv(m, BM) * cdiv(n, BN)"]
// block  = ["32 * WK * (BM // WM) * (BN // WN)"]
// shared = "STAGES * WK * (BM + BN) * 128"
//
// [variant.mma_bf16]
// title     = "bf16 mma.sync with a cp.async pipeline and ldmatrix; warps may split k for small batches"
// builds_on = "warp_tile"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// define    = { ALIGNED = "k % 8 == 0" }
// tune      = { BM = [128, 32], BN = [128, 256, 32], WN = [64, 32], WK = [1, 4, 8], STAGES = [3, 2] }
// where     = [
//  "(BM, BN, WN, WK, STAGES) in ((128, 256, 64, 1, 3), (128, 128, 64, 1, 3), (128, 32, 32, 4, 2), (32, 32, 32, 8, 3))",
// ]
//
// [variant.mma_f16]
// title     = "mma_bf16 in f16, which has three more bits of precision and less range"
// builds_on = "mma_bf16"
// product   = "f16"
// supports  = { dtype = ["f16"] }
// define    = { ALIGNED = "k % 8 == 0" }
// tune      = { BM = [128, 32], BN = [128, 256, 32], WN = [64, 32], WK = [1, 4, 8], STAGES = [3, 2] }
// where     = [
//  "(BM, BN, WN, WK, STAGES) in ((128, 256, 64, 1, 3), (128, 128, 64, 1, 3), (128, 32, 32, 4, 2), (32, 32, 32, 8, 3))",
// ]
//
// [variant.mma_tf32]
// title     = "TF32 mma.sync with a cp.async pipeline and ldmatrix; warps may split k for small batches"
// builds_on = "warp_tile"
// product   = "tf32"
// define    = { ALIGNED = "k % 4 == 0" }
// tune      = { BM = [128, 32], BN = [128, 256, 32], WN = [64, 32], WK = [1, 4, 8], STAGES = [4, 3, 2] }
// where     = [
//  "(BM, BN, WN, WK, STAGES) in ((128, 256, 64, 1, 4), (128, 128, 64, 1, 3), (128, 32, 32, 4, 2), (32, 32, 32, 8, 3))",
// ]
//
// [variant.mma_3xtf32]
// title     = "3xTF32 (mma.sync): operands split into two TF32 numbers, three products, float32 accuracy"
// builds_on = "mma_tf32"
// mechanism = ["operand_split"]
// product   = "tf32x3"
// requires  = ["k >= 4"]
// define    = { ALIGNED = "k % 4 == 0" }
// tune      = { BM = [128, 64, 32], BN = [128, 32], WN = [32], WK = [1, 4, 8], STAGES = [4, 3, 2] }
// where     = [
//  "(BM, BN, WN, WK, STAGES) in ((128, 128, 32, 1, 4), (64, 128, 32, 1, 4), (128, 32, 32, 4, 2), (32, 32, 32, 8, 3))",
// ]
//
// [variant.mma_tf32_corrected]
// title     = "float32 accuracy (mma.sync): one TF32 product plus two bf16 products of the TF32 rounding errors"
// builds_on = "mma_3xtf32"
// mechanism = ["operand_split"]
// product   = "tf32_corrected"
// requires  = ["k >= 128"]
// define    = { ALIGNED = "k % 4 == 0" }
// tune      = { BM = [128, 64], BN = [128, 32], WN = [32], WK = [1, 4], STAGES = [4, 2] }
// where     = ["(BM, BN, WN, WK, STAGES) in ((128, 128, 32, 1, 4), (64, 128, 32, 1, 4), (128, 32, 32, 4, 2))"]
// ///
//
// Tensor cores multiply up to 16 times as fast as CUDA cores, so everything else must take few instructions. A warp
// computes 64 x 64 outputs, which reads 4 KB of shared memory for 32 mma instructions. cp.async copies run ahead by
// several stages and need no registers. The first fragments of a step are loaded before the barrier that ends the
// previous step.
//
// If the output has few tiles, WK groups of warps share each tile. Each group processes a slice of k, and the sums of
// the groups are added in shared memory in a fixed order. So all multiprocessors take part in reading the weights of a
// small batch. The products with float32 accuracy need twice the accumulators, so there a warp has 64 x 32 outputs. The
// error of tf32_corrected is 1.3e-6 of the output's norm whatever k is, so 3xtf32 is meant for a short k. Limit:
// mma.sync, which reaches about 62 % of the rate of Hopper's tensor cores (only wgmma reaches all of it); for small
// batches DRAM. After CUTLASS 2's multistage kernels for Ampere and its example 27; H. Ootomo and R. Yokota, Recovering
// single precision accuracy from Tensor Cores (2022).

#include <opbench/epilogue.cuh>
#include <opbench/matrix_rows.cuh>
#include <opbench/products.cuh>
#include <opbench/slices.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Product<Format::PRODUCT> P;
typedef Block<P, BM, BN, WM, WN, STAGES, WK> Tile;
typedef P::T T;

// x [m][k], weight [n][k], bias [n], out [m][n]
extern "C" __global__ void __launch_bounds__(Tile::threads)
    linear_mma(const T* __restrict__ x, const T* __restrict__ weight,
#if BIAS
               const T* __restrict__ bias,
#endif
               T* __restrict__ out, int m, int n, int k) {
#if !BIAS
    const T* bias = nullptr;
#endif
    extern __shared__ __align__(128) unsigned char shared[];
    const auto [m0, n0] = Tile::along_rows(m);  // neighbouring blocks share the rows of weight, the larger operand
    MatrixRows<Tile, ALIGNED> rows(shared, x, weight, m0, n0, m, n, k, 0, k);
    const Warp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile, P::slices == 1, true>(sum, shared, (k + Tile::bk - 1) / Tile::bk, warp, rows);
    if constexpr (WK > 1)
        store_slices<Tile, BIAS, activation_of::EPILOGUE>(sum, shared, warp, out, bias, m0, n0, m, n);
    else
        store_tile<Tile, BIAS, activation_of::EPILOGUE>(sum, shared, out, bias, m0 + warp.m, n0 + warp.n, m, n);
}
