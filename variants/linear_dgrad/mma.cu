// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "double_buffer", "async_copy",
//     "tensor_core",
// ]
// tile      = { m = "BM", n = "BN" }
// supports  = { epilogue = ["none", "mask", "gelu_tanh"] }
// compute_capability = "8.0"
//
// [define]
// WM       = "min(BM, 64)"
// EPILOGUE = "'plain' if epilogue == 'none' else epilogue"
// OTHER    = "epilogue != 'none'"
//
// [[launch]]
// kernel = "linear_dgrad_mma"
// grid   = ["cdiv(m, BM) * cdiv(k, BN)"]
// block  = ["32 * (BM // WM) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
//
// [variant.mma_bf16]
// title     = "bf16 mma.sync with a cp.async pipeline; ldmatrix transposes the weights"
// builds_on = "register_tile"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// define    = { N_ALIGNED = "n % 8 == 0", K_ALIGNED = "k % 8 == 0" }
// tune      = { BM = [128, 64], BN = [128, 256, 64], WN = [64, 32], STAGES = [3, 4] }
// where     = ["(BM, BN, WN, STAGES) in ((128, 256, 64, 3), (128, 128, 64, 3), (64, 64, 32, 4))"]
//
// [variant.mma_tf32]
// title     = "TF32 mma.sync with a cp.async pipeline; weights are loaded from shared memory word by word"
// builds_on = "register_tile"
// mechanism = ["bank_conflict_free"]
// product   = "tf32"
// define    = { N_ALIGNED = "n % 4 == 0", K_ALIGNED = "k % 4 == 0" }
// tune      = { BM = [128, 64], BN = [128, 256, 64], WN = [64, 32], STAGES = [3, 4] }
// where     = ["(BM, BN, WN, STAGES) in ((128, 256, 64, 4), (128, 128, 64, 3), (64, 64, 32, 4))"]
//
// [variant.mma_3xtf32]
// title     = "3xTF32 (mma.sync): operands split into two TF32 numbers, three products, float32 accuracy"
// builds_on = "mma_tf32"
// mechanism = ["bank_conflict_free", "operand_split"]
// product   = "tf32x3"
// requires  = ["n >= 4"]
// define    = { N_ALIGNED = "n % 4 == 0", K_ALIGNED = "k % 4 == 0" }
// tune      = { BM = [128, 64], BN = [128, 64], WN = [32], STAGES = [4] }
// where     = ["(BM, BN) != (128, 64)"]
// ///
//
// The product of matmul/mma with the right operand stored by rows, as the weights are: nothing is transposed
// beforehand. cp.async copies run ahead by several stages and need no registers. ldmatrix transposes bf16 on its way to
// registers; it transposes only 16-bit elements, so floats are read as words of 4 bytes. The mask of the previous
// layer's ReLU is applied where dx is stored. Limit: mma.sync, which reaches about 62 % of the rate of Hopper's tensor
// cores; with floats the loads of words; and for the batches of training few tiles, which mma_bf16_split,
// mma_tf32_split and mma_3xtf32_split divide. After CUTLASS 2's multistage kernels for Ampere and its example 27; H.
// Ootomo and R. Yokota, Recovering single precision accuracy from Tensor Cores (2022).

#include <opbench/gradients.cuh>
#include <opbench/matrix_columns.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Product<Format::PRODUCT> P;
typedef Block<P, BM, BN, WM, WN, STAGES> Tile;
typedef P::T T;

// dout [m][n], weight [n][k], other (out or a) and dx [m][k]
extern "C" __global__ void __launch_bounds__(Tile::threads)
    linear_dgrad_mma(const T* __restrict__ dout, const T* __restrict__ weight,
#if OTHER
                     const T* __restrict__ other,
#endif
                     T* __restrict__ dx, int m, int n, int k) {
    extern __shared__ __align__(128) unsigned char shared[];
    const auto [m0, n0] = Tile::along_rows(m);  // neighbouring blocks share the columns of weight, the larger operand
    RowsAndColumns<Tile, N_ALIGNED, K_ALIGNED> rows(shared, dout, weight, m0, n0, m, k, n, 0, n);
    const ColumnsWarp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile, true, true>(sum, shared, (n + Tile::bk - 1) / Tile::bk, warp, rows);
#if !OTHER
    const T* other = nullptr;
#endif
    store_gradient<Tile, EPILOGUE>(sum, shared, dx, other, m0 + warp.m, n0 + warp.n, m, k);
}
