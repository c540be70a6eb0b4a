// /// opbench
// title     = "warp tiles; both operands are transposed into double-buffered shared memory"
// builds_on = "naive"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "fewer_barriers", "double_buffer",
// ]
// tile      = { m = "BM", n = "BN", k = "BK" }
// supports  = { epilogue = ["bias", "bias_relu"] }
// define    = { RELU = "1 if epilogue == 'bias_relu' else 0" }
// tune      = { BM = [128, 64], BN = [256, 128, 64], BK = [8, 16], TM = [8], TN = [16, 8] }
// where     = ["(BM, BN, BK, TN) in ((64, 64, 16, 8), (128, 128, 8, 8), (128, 256, 8, 16), (128, 256, 16, 16))"]
//
// [[launch]]
// kernel = "linear_warp_tile"
// grid   = ["cdiv(m, BM) * cdiv(n, BN)"]
// block  = ["BM * BN // (TM * TN)"]
// ///
//
// For batches large enough to be a matrix product. Each weight that a block loads is used for BM rows of x. Both
// operands are contiguous along k: they are loaded by float4 along k and transposed while they are stored to shared
// memory. A thread keeps TM x TN sums. The design is that of matmul/column_major_b; the sums start with the bias, and
// ReLU needs no extra pass. Limit: the multiply-adds; for small batches, few blocks. After CUTLASS's SIMT SGEMM, layout
// "tn" (A. Kerr et al., 2017).

#include <opbench/float_columns.cuh>
using namespace opbench;

typedef ColumnTiles<BM, BN, BK, TM, TN> Tiles;

// x [m, k], weight [n, k], bias [n], out [m, n]
extern "C" __global__ void __launch_bounds__(Tiles::threads, Tiles::resident / Tiles::threads)
    linear_warp_tile(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                     float* __restrict__ out, int m, int n, int k) {
    multiply_by_columns<BM, BN, BK, TM, TN, true, RELU>(x, weight, bias, out, m, n, k);
}
