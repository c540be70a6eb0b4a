// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "split_k",
//     "double_buffer", "async_copy", "tensor_core", "cluster",
// ]
// tile      = { m = "BM", n = "BN", split = "SPLIT" }
// supports  = { epilogue = ["none", "mask", "gelu_tanh"] }
// requires  = ["SPLIT * cdiv(m, BM) * cdiv(k, BN) < 2 ** 31"]
// compute_capability = "9.0"
//
// [define]
// WM       = "min(BM, 64)"
// EPILOGUE = "'plain' if epilogue == 'none' else epilogue"
// OTHER    = "epilogue != 'none'"
// N_ALIGNED = "n % 4 == 0"
// K_ALIGNED = "k % 4 == 0"
//
// [[launch]]
// kernel  = "linear_dgrad_mma_cluster"
// grid    = ["SPLIT * cdiv(m, BM) * cdiv(k, BN)"]
// block   = ["32 * (BM // WM) * (BN // WN)"]
// cluster = ["SPLIT"]
// shared  = "STAGES * (BM + BN) * 128"
// args    = ["dout", "weight", "out?", "a?", "dx", "m", "n", "k"]
//
// [variant.mma_tf32_cluster]
// title     = "split-K over the blocks of a cluster, which add their sums in shared memory"
// builds_on = "mma_tf32_split"
// product   = "tf32"
// tune      = { BM = [16, 64], BN = [32, 64], WN = [16, 32], STAGES = [4], SPLIT = [8, 4] }
// where     = ["(BM, BN, WN) in ((16, 32, 16), (16, 64, 32), (64, 64, 32))"]
// ///
//
// A layer of some ten thousand outputs takes as long as its launches and one access to memory. mma_tf32_split writes
// partial sums to memory for a second launch. Here the blocks that share a tile form a cluster: each adds some rows of
// all partial sums through distributed shared memory, in the order of the blocks, and applies the epilogue to them.
// With tiles of 16 x 32 and 8 blocks per tile, 16 rows of 512 columns occupy 128 multiprocessors, and all stages of a
// block are in flight at once. Limit: the launch, one access to memory and two synchronisations of the cluster. After
// linear/wgmma_few_rows_tf32; its instruction, wgmma, cannot transpose weights in TF32.

#include <opbench/cluster_sums.cuh>
#include <opbench/matrix_columns.cuh>
#include <opbench/products.cuh>
using namespace opbench;

typedef Block<Product<Format::PRODUCT>, BM, BN, WM, WN, STAGES> Tile;
typedef Tile::T T;

// dout [m][n], weight [n][k], other (out or a) and dx [m][k]
extern "C" __global__ void __launch_bounds__(Tile::threads)
    linear_dgrad_mma_cluster(const T* __restrict__ dout, const T* __restrict__ weight,
#if OTHER
                             const T* __restrict__ other,
#endif
                             T* __restrict__ dx, int m, int n, int k) {
    extern __shared__ __align__(128) unsigned char shared[];
#if !OTHER
    const T* other = nullptr;
#endif
    const int tiles_m = (m + BM - 1) / BM, index = blockIdx.x / SPLIT;
    const BlockPlace tile = {index % tiles_m * BM, index / tiles_m * BN};
    const SplitK part((n + Tile::bk - 1) / Tile::bk, (int)cluster_rank(), SPLIT);
    RowsAndColumns<Tile, N_ALIGNED, K_ALIGNED> rows(shared, dout, weight, tile.row, tile.column, m, k, n,
                                                    part.first * Tile::bk,
                                                    min(n, (part.first + part.steps) * Tile::bk));
    const ColumnsWarp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile, true, true>(sum, shared, part.steps, warp, rows);
    store_cluster_gradient<Tile, SPLIT, EPILOGUE>(sum, shared, dx, other, warp, tile, m, k);
}
