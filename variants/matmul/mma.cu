// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "double_buffer", "async_copy", "tensor_core",
// ]
// supports  = { b_order = ["row", "col"] }
// define    = { WM = "min(BM, 64)", B_ROWS = "b_order == 'row'" }
// compute_capability = "8.0"
//
// [[launch]]
// kernel = "matmul_mma"
// grid   = ["cdiv(m, BM) * cdiv(n, BN)"]
// block  = ["32 * WK * (BM // WM) * (BN // WN)"]
// shared = "STAGES * WK * (BM + BN) * 128"
//
// [variant.mma_bf16]
// title     = "fragments loaded before the barrier, full-line stores, b in both orders; warps may split k"
// builds_on = "mma_cp_async"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// define    = { K_ALIGNED = "k % 8 == 0", N_ALIGNED = "n % 8 == 0" }
// tune      = { BM = [128, 32], BN = [128, 256, 32], WN = [64, 32], WK = [1, 4, 8], STAGES = [3, 2] }
// where     = [
//  "(BM, BN, WN, WK, STAGES) in ((128, 256, 64, 1, 3), (128, 128, 64, 1, 3), (128, 32, 32, 4, 2), (32, 32, 32, 8, 3))",
// ]
//
// [variant.mma_tf32]
// title     = "TF32 mma.sync with a cp.async pipeline and ldmatrix; warps may split k for few rows"
// builds_on = "warp_tile_double_buffer"
// product   = "tf32"
// define    = { K_ALIGNED = "k % 4 == 0", N_ALIGNED = "n % 4 == 0" }
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
// define    = { K_ALIGNED = "k % 4 == 0", N_ALIGNED = "n % 4 == 0" }
// tune      = { BM = [128, 64, 32], BN = [128, 32], WN = [32], WK = [1, 4, 8], STAGES = [4, 3, 2] }
// where     = [
//  "(BM, BN, WN, WK, STAGES) in ((128, 128, 32, 1, 4), (64, 128, 32, 1, 4), (128, 32, 32, 4, 2), (32, 32, 32, 8, 3))",
// ]
// ///
//
// Tensor cores multiply up to 16 times as fast as CUDA cores, so everything else must take few instructions. A warp
// computes 64 x 64 outputs, which reads 4 KB of shared memory for 32 mma instructions. cp.async copies run STAGES steps
// ahead and need no registers. The first fragments of a step are loaded before the barrier that ends the previous step.
// If b is stored by rows, 16-bit elements are transposed by ldmatrix on their way to registers; TF32 elements are read
// as words of 4 bytes, because ldmatrix can transpose only 16-bit elements.
//
// If the output has few tiles, WK groups of warps share each tile. Each group processes a slice of k, and the sums of
// the groups are added in shared memory in a fixed order. So all multiprocessors take part in reading b when there are
// few rows. 3xTF32 needs twice the accumulators, so there a warp has 64 x 32 outputs. Limit: mma.sync, which reaches
// about 62 % of the rate of Hopper's tensor cores (only wgmma reaches all of it); with few rows DRAM. After CUTLASS 2's
// multistage kernels for Ampere and its example 27; H. Ootomo and R. Yokota, Recovering single precision accuracy from
// Tensor Cores (2022).

#include <opbench/epilogue.cuh>
#include <opbench/matrix_columns.cuh>
#include <opbench/matrix_rows.cuh>
#include <opbench/products.cuh>
#include <opbench/slices.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Product<Format::PRODUCT> P;
typedef Block<P, BM, BN, WM, WN, STAGES, WK> Tile;
typedef P::T T;
#if B_ROWS
typedef RowsAndColumns<Tile, K_ALIGNED, N_ALIGNED> Operands;
typedef ColumnsWarp<Tile> Lanes;
#else
typedef MatrixRows<Tile, K_ALIGNED> Operands;
typedef Warp<Tile> Lanes;
#endif

// a [m][k], b [k][n] (B_ROWS) or [n][k], out [m][n]
extern "C" __global__ void __launch_bounds__(Tile::threads)
    matmul_mma(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ out, int m, int n, int k) {
    extern __shared__ __align__(128) unsigned char shared[];
    const auto [m0, n0] = Tile::along_rows(m);  // neighbouring blocks share the columns of b
    Operands operands(shared, a, b, m0, n0, m, n, k, 0, k);
    const Lanes warp;
    Tile::Sums sum = {};
    multiply_stages<Tile, true, true>(sum, shared, (k + Tile::bk - 1) / Tile::bk, warp, operands);
    if constexpr (WK > 1)
        store_slices<Tile, false, false>(sum, shared, warp, out, nullptr, m0, n0, m, n);
    else
        store_tile<Tile, false, false>(sum, shared, out, nullptr, m0 + warp.m, n0 + warp.n, m, n);
}
