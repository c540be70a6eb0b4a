// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "fewer_passes",
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
// kernel = "rmsnorm_vectorised"
// grid   = ["min(cdiv(rows, ROWS_PER_BLOCK), sm_count * BLOCKS) if BLOCKS else cdiv(rows, ROWS_PER_BLOCK)"]
// block  = ["THREADS", "ROWS_PER_BLOCK"]
// args   = ["x", "residual?", "weight", "out", "rstd", "sum?", "rows"]
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
// threads, whose warps exchange their sums through shared memory. The weight is loaded together with the row, before
// the sums are computed. STREAM marks the rows evict-first in L2. In `persistent`, the weight stays in registers for
// all rows of a block, and the next row is loaded while the sums of this one are computed. Limit: HBM; if the row
// length is not a multiple of a vector, narrower accesses.

#include <opbench/row_norm.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef RowPart<T, COLS, LANES, THREADS> Row;
constexpr int WARPS = (THREADS + 31) / 32;  // warps that share a row

extern "C" __global__ void __launch_bounds__(THREADS* ROWS_PER_BLOCK)
    rmsnorm_vectorised(const T* __restrict__ x,
#if ADD
                       const T* __restrict__ residual,
#endif
                       const float* __restrict__ weight, T* __restrict__ out, float* __restrict__ rstd,
#if ADD
                       T* total,
#endif
                       int rows) {
    // x, residual, out, total [rows][cols]; weight [cols]; rstd [rows]
    // of this row and of the next one, so that one barrier per row is enough
    __shared__ float squared[2][ROWS_PER_BLOCK][WARPS];
    const int step = gridDim.x * ROWS_PER_BLOCK;
    // may exceed the last row: all threads take part in shuffles and barriers
    int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;
    Row current_row, next_row;
    current_row.load<STREAM>(x, row, row < rows);
#if ADD
    Row added, next_added;
    added.load<STREAM>(residual, row, row < rows);
#endif
    ColumnPart<Row> factors;
    factors.load(weight);
    int buffer = 0;
    for (int first = blockIdx.x * ROWS_PER_BLOCK; first < rows; first += step, row += step) {
        const bool more = BLOCKS != 0 && row + step < rows;
        next_row.load<STREAM>(x, row + step, more);
#if ADD
        next_added.load<STREAM>(residual, row + step, more);
        current_row.add(added);
        if (row < rows) current_row.store<STREAM>(total, row);
        added = next_added;
#endif
        const float factor =
            rsqrtf(over_row<false, THREADS>(current_row.squares(0.0f), squared[buffer]) / COLS + 1e-5f);
        buffer ^= 1;
#pragma unroll
        for (int k = 0; k < Row::items; ++k) {
            if (!Row::has_vector(k)) break;
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                current_row.set(k, lane, current_row.value(k, lane) * factor * factors.value[k][lane]);
            }
        }
        if (row < rows) {
            current_row.store<STREAM>(out, row);
            if (threadIdx.x == 0) {
                rstd[row] = factor;
            }
        }
        current_row = next_row;
        if (BLOCKS == 0) break;
    }
}
