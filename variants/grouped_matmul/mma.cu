// /// opbench
// title     = "bf16 mma.sync with a cp.async pipeline, each tile within one group"
// builds_on = "shared_tile"
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "double_buffer",
//     "async_copy", "tensor_core",
// ]
// product   = "bf16"
// tile      = { m = "BM", n = "BN", k = 64 }
// tune      = { BM = [128, 64], BN = [256, 128, 64], WN = [64, 32] }
// where     = ["(BM, BN, WN) in ((128, 256, 64), (128, 128, 64), (64, 128, 32), (64, 64, 32))"]
// requires  = ["(cdiv(m, BM) + groups) * cdiv(n, BN) < 2 ** 31"]
// define.ALIGNED = "k % 8 == 0"
// compute_capability = "8.0"
//
// [[launch]]
// kernel = "grouped_matmul_mma"
// grid   = ["(cdiv(m, BM) + groups) * cdiv(n, BN)"]
// block  = ["32 * (BM // 64) * (BN // WN)"]
// shared = "3 * (BM + BN) * 128"
// ///
//
// The tile of a block ends with its group: rows after the group are loaded as zeros and are not stored. Otherwise the
// loop is that of batched_matmul/mma_bf16. Small groups fill only a part of a tile; smaller tiles reduce this waste.
// Limit: mma.sync, which reaches about 62 % of the rate of Hopper's tensor cores.

#include <opbench/epilogue.cuh>
#include <opbench/groups.cuh>
#include <opbench/matrix_rows.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Product<Format::bf16> P;
typedef Block<P, BM, BN, 64, WN, 3> Tile;
typedef P::T T;

// a [m][k], b [groups][n][k], ends [groups], out [m][n]
extern "C" __global__ void __launch_bounds__(Tile::threads)
    grouped_matmul_mma(const T* __restrict__ a, const T* __restrict__ b, const int* __restrict__ ends,
                       T* __restrict__ out, int m, int n, int k, int groups) {
    extern __shared__ __align__(128) unsigned char shared[];
    const GroupTile tile = GroupScheduler<BM>(ends, groups, (n + BN - 1) / BN)(blockIdx.x);
    if (!tile.exists()) return;
    const int n0 = tile.column * BN;
    MatrixRows<Tile, ALIGNED> operands(shared, a, b + (size_t)tile.group * n * k, tile.row, n0, tile.end, n, k, 0, k);
    const Warp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile>(sum, shared, (k + Tile::bk - 1) / Tile::bk, warp, operands);
    store_tile<Tile, false, false>(sum, shared, out, (const T*)nullptr, tile.row + warp.m, n0 + warp.n, tile.end, n);
}
