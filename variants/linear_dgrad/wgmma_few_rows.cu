// /// opbench
// title     = "few rows: bf16 wgmma with weights as rows, n split over a cluster, whose blocks add the sums"
// builds_on = "wgmma"
// mechanism = [
//     "shared_memory_tile", "register_tile", "bank_conflict_free", "split_k", "double_buffer", "tma", "tensor_core",
//     "cluster",
// ]
// product   = "bf16"
// supports  = { dtype = ["bf16"], epilogue = ["none", "mask"] }
// requires  = ["m <= 128", "n % 8 == 0 and k % 8 == 0", "k * max(m, n) < 2 ** 31"]
// compute_capability = "9.0a"
// tune      = { SPLIT = [1, 2] }
//
// [define]
// BATCH  = "8 if m <= 8 else 16 if m <= 16 else 32 if m <= 32 else 64 if m <= 64 else 128"
// ROOM   = "196608 if SPLIT * cdiv(k, 64) <= 132 else 98304"
// STAGES = "min(12, ROOM // (128 * (64 + BATCH)))"
// MASK   = "epilogue == 'mask'"
//
// [tensor_maps]
// map_weight = { tensor = "weight", box = [64, 64] }
// map_dout   = { tensor = "dout", box = [64, "BATCH"] }
//
// [[launch]]
// kernel  = "linear_dgrad_wgmma_few_rows"
// grid    = ["SPLIT * cdiv(k, 64)"]
// block   = [160]
// cluster = ["SPLIT"]
// shared  = "STAGES * (128 * (64 + BATCH) + 16) + 8"
// args    = ["map_weight", "map_dout", "out?", "dx", "m", "n", "k"]
// ///
//
// linear/wgmma_few_rows for the gradient: 64 columns of the weights, in their stored order, are the rows of the wgmma
// instruction, and the batch is its columns, so no tile is padded. Unlike with Stream-K (the previous variant), no
// partial sums are stored in memory and there is no second kernel: one block processes all of n, or the blocks of a
// cluster divide n and add their sums through shared memory. Limit: DRAM; at 128 rows also dout, which is read from L2
// once per 64 columns.

#include <opbench/few_rows.cuh>
using namespace opbench;

typedef FewRows<Format::bf16, BATCH, 1, SPLIT, STAGES, true> Stream;
typedef Stream::T T;

// weight [n][k], dout [m][n], other (out) and dx [m][k]
extern "C" __global__ void __launch_bounds__(160)
    linear_dgrad_wgmma_few_rows(const __grid_constant__ TensorMap map_weight,
                                const __grid_constant__ TensorMap map_dout,
#if MASK
                                const T* __restrict__ other,
#endif
                                T* __restrict__ dx, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Stream::multiply(
        shared, &map_weight, &map_dout, m, k, n,
        [&](int column, int output_index) {
#if MASK
            return widen(other[(size_t)column * k + output_index]);
#else
            return 1.0f;
#endif
        },
        [&](float total, float forward_value, int column) {
            dx[(size_t)column * k + Stream::output_index()] = Stream::to_operand(forward_value > 0.0f ? total : 0.0f);
        });
}
