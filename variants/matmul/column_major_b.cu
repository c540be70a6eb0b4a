// /// opbench
// title     = "column-major b: both operands are transposed into double-buffered shared memory, warp tiles"
// builds_on = "naive_col"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "fewer_barriers", "double_buffer",
// ]
// tile      = { m = "BM", n = "BN", k = "BK" }
// tune      = { BM = [128, 64, 256], BN = [256, 128, 64], BK = [8, 16], TM = [8], TN = [16, 8] }
// where     = [
//   "(BM, BN) in ((64, 64), (128, 128), (128, 256))",
//   "TN == (8 if BM * BN <= 128 * 128 else 16)",
//   "(BM, BN, BK) != (128, 128, 16)",  # two blocks per multiprocessor leave 128 registers: too few
// ]
// supports  = { b_order = ["col"] }
//
// [[launch]]
// kernel = "matmul_column_major_b"
// grid   = ["cdiv(m, BM) * cdiv(n, BN)"]
// block  = ["BM * BN // (TM * TN)"]
// ///
//
// With b stored [n, k], both operands are contiguous along k, the axis of the sum. So b is loaded in the same way as a,
// by float4 along k, and is transposed while it is stored to shared memory. The inner loop is then that of
// `warp_tile_double_buffer`. The layout costs four scalar stores to shared memory instead of one float4 store, and a
// narrower global access: BK / 4 lanes share a row, which is 64 contiguous bytes at BK = 16. Limit: the multiply-adds,
// as in `warp_tile_double_buffer`. After CUTLASS's SIMT SGEMM, layout "tn" (A. Kerr et al., 2017).

#include <opbench/float_columns.cuh>
using namespace opbench;

typedef ColumnTiles<BM, BN, BK, TM, TN> Tiles;

// a [m, k], b [n, k], out [m, n]
extern "C" __global__ void __launch_bounds__(Tiles::threads, Tiles::resident / Tiles::threads)
    matmul_column_major_b(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, int m,
                          int n, int k) {
    multiply_by_columns<BM, BN, BK, TM, TN, false, false>(a, b, nullptr, out, m, n, k);
}
