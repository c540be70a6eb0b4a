// /// opbench
// title     = "16-byte accesses; a block loads its next row while it computes the current one"
// builds_on = "registers"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "fewer_passes", "persistent", "split_k", "double_buffer",
// ]
// tune      = { ITEMS = [2, 1, 4], PARTS = [264, 132, 528], STREAM = [0, 1] }
// supports  = { dtype = ["f32", "bf16"], residual = ["none", "add"] }
// requires  = ["THREADS <= 1024", "THREADS * (REGISTERS + 32) <= 65536"]
//
// [define]
// BF16           = "dtype == 'bf16'"
// ADD            = "residual == 'add'"
// COLS           = "cols"
// LANES          = "lanes"
// VECTORS        = "cols // lanes"
// THREADS        = "8 if VECTORS <= 8 else (16 if VECTORS <= 16 else 32 * cdiv(VECTORS, 32 * ITEMS))"
// ROWS_PER_BLOCK = "max(1, 128 // THREADS)"
// REGISTERS      = "40 * ITEMS"
// BLOCKS         = "min(PARTS, cdiv(rows, ROWS_PER_BLOCK))"
// PARTS_USED     = "BLOCKS * ROWS_PER_BLOCK"
//
// [workspace]
// part_weight = "cols * PARTS_USED"
// part_bias   = "cols * PARTS_USED"
//
// [[launch]]
// kernel = "layernorm_backward_rows"
// grid   = ["BLOCKS"]
// block  = ["THREADS", "ROWS_PER_BLOCK"]
// args   = ["x", "dout", "weight", "mean", "rstd", "dsum?", "dx", "part_weight", "part_bias", "rows"]
//
// [[launch]]
// kernel = "layernorm_backward_columns"
// grid   = ["cdiv(cols, 32)"]
// block  = ["32", "16"]
// args   = ["part_weight", "part_bias", "dweight", "dbias", "PARTS_USED", "cols"]
// ///
//
// A thread loads ITEMS vectors of 16 bytes of x and of dout, and those of its next row before it waits for the sums of
// this row. Short rows share a block, and each row of a block has its own sums. The order of all sums depends only on
// the problem and the config. Limits: HBM, and registers: a vector of bf16 needs 40 registers per thread.

#include <opbench/row_gradient.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef RowPart<T, COLS, LANES, THREADS> Row;

extern "C" __global__ void __launch_bounds__(THREADS* ROWS_PER_BLOCK)
    layernorm_backward_rows(const T* __restrict__ x, const T* __restrict__ dout, const float* __restrict__ weight,
                            const float* __restrict__ mean, const float* __restrict__ rstd,
#if ADD
                            const T* __restrict__ dsum,
#endif
                            T* __restrict__ dx, float* __restrict__ part_weight, float* __restrict__ part_bias,
                            int rows) {
    // x, dout, dsum, dx [rows][cols]; weight [cols]; mean, rstd [rows]; parts [PARTS_USED][cols]
#if !ADD
    const T* const dsum = nullptr;
#endif
    store_norm_gradient<Row, true, ADD, STREAM, BLOCKS, ROWS_PER_BLOCK, THREADS, T>(
        {x, dout, weight, mean, rstd, dsum, dx, part_weight, part_bias}, rows);
}

extern "C" __global__ void __launch_bounds__(512)
    layernorm_backward_columns(const float* __restrict__ part_weight, const float* __restrict__ part_bias,
                               float* __restrict__ dweight, float* __restrict__ dbias, int parts, int cols) {
    // part_weight, part_bias [parts][cols]; dweight, dbias [cols]
    add_column_parts<2>({part_weight, part_bias}, {dweight, dbias}, parts, cols);
}
