// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "split_k",
//     "double_buffer", "async_copy", "tensor_core",
// ]
// tile      = { m = "BM", n = "BN", split = "SPLIT" }
// supports  = { epilogue = ["none", "mask", "gelu_tanh"] }
// requires  = ["SPLIT * m * k <= 2 ** 30"]
// where     = ["BM == BN"]
// compute_capability = "8.0"
// workspace = { parts = "SPLIT * m * k" }
//
// [define]
// WM       = "min(BM, 64)"
// EPILOGUE = "'plain' if epilogue == 'none' else epilogue"
// OTHER    = "epilogue != 'none'"
//
// [[launch]]
// kernel = "linear_dgrad_mma_parts"
// grid   = ["cdiv(m, BM) * cdiv(k, BN)", "SPLIT"]
// block  = ["32 * (BM // WM) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["dout", "weight", "parts", "m", "n", "k"]
//
// [[launch]]
// kernel = "linear_dgrad_add_parts"
// grid   = ["cdiv(m * k, 128 * (4 if m * k % 4 == 0 else 1))"]
// block  = [128]
// args   = ["parts", "out?", "a?", "dx", "m * k"]
//
// [variant.mma_bf16_split]
// title     = "mma_bf16 with n split over SPLIT blocks per tile; a second kernel adds the partial sums"
// builds_on = "mma_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// define    = { N_ALIGNED = "n % 8 == 0", K_ALIGNED = "k % 8 == 0" }
// tune      = { BM = [128, 64], BN = [128, 64], WN = [64, 32], STAGES = [3, 4], SPLIT = [4, 8, 2] }
// where     = ["(BM, WN, STAGES) in ((128, 64, 3), (64, 32, 4))"]
//
// [variant.mma_tf32_split]
// title     = "mma_tf32 with n split over SPLIT blocks per tile; a second kernel adds the partial sums"
// builds_on = "mma_tf32"
// product   = "tf32"
// define    = { N_ALIGNED = "n % 4 == 0", K_ALIGNED = "k % 4 == 0" }
// tune      = { BM = [128, 64], BN = [128, 64], WN = [64, 32], STAGES = [3, 4], SPLIT = [4, 8, 2] }
// where     = ["(BM, WN, STAGES) in ((128, 64, 3), (64, 32, 4))"]
//
// [variant.mma_3xtf32_split]
// title     = "mma_3xtf32 with n split over SPLIT blocks per tile; a second kernel adds the partial sums"
// builds_on = "mma_3xtf32"
// mechanism = ["operand_split"]
// product   = "tf32x3"
// requires  = ["n >= 4"]
// define    = { N_ALIGNED = "n % 4 == 0", K_ALIGNED = "k % 4 == 0" }
// tune      = { BM = [128, 64], BN = [128, 64], WN = [32], STAGES = [4], SPLIT = [4, 8, 2] }
// ///
//
// A batch of 32 to 256 items has only a few dozen tiles, too few for all multiprocessors. Most bytes of a layer are its
// weights, so all multiprocessors should take part in reading them. SPLIT blocks share a tile. Each block sums over its
// own range of n and stores partial sums in a workspace [SPLIT, m, k]; a second kernel adds them in index order and
// applies the mask, so the bits are the same every time. Limit: DRAM for small batches; the partial sums are written
// and read once more, from L2, and there is a second launch. After "split K" in CUTLASS's efficient GEMM notes.

#include <opbench/gradients.cuh>
#include <opbench/matrix_columns.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Product<Format::PRODUCT> P;
typedef Block<P, BM, BN, WM, WN, STAGES> Tile;
typedef P::T T;

// dout [m][n], weight [n][k], parts [SPLIT][m][k]
extern "C" __global__ void __launch_bounds__(Tile::threads)
    linear_dgrad_mma_parts(const T* __restrict__ dout, const T* __restrict__ weight, float* __restrict__ parts, int m,
                           int n, int k) {
    extern __shared__ __align__(128) unsigned char shared[];
    const auto [m0, n0] = Tile::along_rows(m);
    const SplitK part((n + Tile::bk - 1) / Tile::bk, blockIdx.y, SPLIT);
    RowsAndColumns<Tile, N_ALIGNED, K_ALIGNED> rows(shared, dout, weight, m0, n0, m, k, n, part.first * Tile::bk,
                                                    min(n, (part.first + part.steps) * Tile::bk));
    const ColumnsWarp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile, true, true>(sum, shared, part.steps, warp, rows);
    float* const block_parts = parts + (size_t)blockIdx.y * m * k;
    store_tile<Tile, false, false>(sum, shared, block_parts, (const T*)nullptr, m0 + warp.m, n0 + warp.n, m, k);
}

// parts [SPLIT][total], other (out or a) and dx [total]
extern "C" __global__ void __launch_bounds__(128) linear_dgrad_add_parts(const float* __restrict__ parts,
#if OTHER
                                                                         const T* __restrict__ other,
#endif
                                                                         T* __restrict__ dx, int total) {
#if !OTHER
    const T* other = nullptr;
#endif
    add_gradient_parts<SPLIT, EPILOGUE>(parts, dx, other, total);
}
