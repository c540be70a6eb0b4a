// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "fewer_passes", "overlapped_launch",
// ]
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
//
// [[launch]]
// kernel = "layernorm_vectorised"
// grid   = ["min(cdiv(rows, ROWS_PER_BLOCK), sm_count * BLOCKS) if BLOCKS else cdiv(rows, ROWS_PER_BLOCK)"]
// block  = ["THREADS", "ROWS_PER_BLOCK"]
// programmatic = true
// early  = ["weight", "bias"]
// args   = ["x", "residual?", "weight", "bias", "out", "mean", "rstd", "sum?", "rows"]
//
// [variant.vectorised]
// title     = "16-byte accesses, the row in registers, with as many threads as it needs"
// builds_on = "warp_registers"
// tune      = { ITEMS = [2, 1, 4, 8], STREAM = [0, 1] }
// define    = { BLOCKS = "0", REGISTERS = "16 * ITEMS" }
//
// [variant.persistent]
// title     = "persistent blocks, BLOCKS per multiprocessor: each loads its next row while it normalises one"
// builds_on = "vectorised"
// mechanism = ["persistent", "double_buffer"]
// tune      = { ITEMS = [2, 1, 4], STREAM = [0, 1], BLOCKS = [4, 2, 1, 8] }
// define    = { REGISTERS = "24 * ITEMS" }
// ///
//
// A thread loads ITEMS vectors of 16 bytes, all in flight together. Short rows share a block; long rows have up to 1024
// threads, whose warps exchange their sums through shared memory. Weight and bias are loaded before the previous
// launch, which may write the rows, has ended (programmatic dependent launch). STREAM marks the rows evict-first in L2.
// In `persistent`, weight and bias stay in registers for all rows of a block, and the next row is loaded while the sums
// of this one are computed. Limit: HBM; if the row length is not a multiple of a vector, narrower accesses.
// vector divides the rows.

#include <opbench/overlap.cuh>
#include <opbench/row_norm.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef RowPart<T, COLS, LANES, THREADS> Row;
constexpr int WARPS = (THREADS + 31) / 32;  // warps that share a row

extern "C" __global__ void __launch_bounds__(THREADS* ROWS_PER_BLOCK)
    layernorm_vectorised(const T* x,
#if ADD
                         const T* residual,
#endif
                         const float* __restrict__ weight, const float* __restrict__ bias, T* __restrict__ out,
                         float* __restrict__ mean, float* __restrict__ rstd,
#if ADD
                         T* total,
#endif
                         int rows) {
    // x, residual, out, total [rows][cols]; weight, bias [cols]; mean, rstd [rows]
    __shared__ float sums[ROWS_PER_BLOCK][WARPS], squared[ROWS_PER_BLOCK][WARPS];
    const int step = gridDim.x * ROWS_PER_BLOCK;
    // may exceed the last row: all threads take part in shuffles and barriers
    int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;
    ColumnPart<Row> factors, shifts;
    factors.load(weight);
    shifts.load(bias);
    wait_for_launches_before();
    let_next_launch_start();
    Row current_row, next_row;
    current_row.load<STREAM>(x, row, row < rows);
#if ADD
    Row added, next_added;
    added.load<STREAM>(residual, row, row < rows);
#endif
    for (int first = blockIdx.x * ROWS_PER_BLOCK; first < rows; first += step, row += step) {
        const bool more = BLOCKS != 0 && row + step < rows;
        next_row.load<STREAM>(x, row + step, more);
#if ADD
        next_added.load<STREAM>(residual, row + step, more);
        current_row.add(added);
        if (row < rows) current_row.store<STREAM>(total, row);
        added = next_added;
#endif
        const float centre = over_row<false, THREADS>(current_row.sum(), sums) / COLS;
        const float factor = rsqrtf(over_row<false, THREADS>(current_row.squares(centre), squared) / COLS + 1e-5f);
#pragma unroll
        for (int k = 0; k < Row::items; ++k) {
            if (!Row::has_vector(k)) break;
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                current_row.set(
                    k, lane,
                    (current_row.value(k, lane) - centre) * factor * factors.value[k][lane] + shifts.value[k][lane]);
            }
        }
        if (row < rows) {
            current_row.store<STREAM>(out, row);
            if (threadIdx.x == 0) {
                mean[row] = centre;
                rstd[row] = factor;
            }
        }
        current_row = next_row;
        if (BLOCKS == 0) break;
    }
}
