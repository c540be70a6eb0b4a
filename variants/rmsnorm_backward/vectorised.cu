// /// opbench
// title     = "16-byte accesses; a block loads its next row while it computes one"
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
//
// [[launch]]
// kernel = "rmsnorm_backward_rows"
// grid   = ["BLOCKS"]
// block  = ["THREADS", "ROWS_PER_BLOCK"]
// args   = ["x", "dout", "weight", "rstd", "dsum?", "dx", "part_weight", "rows"]
//
// [[launch]]
// kernel = "rmsnorm_backward_columns"
// grid   = ["cdiv(cols, 32)"]
// block  = ["32", "16"]
// args   = ["part_weight", "dweight", "PARTS_USED", "cols"]
// ///
//
// A thread loads ITEMS vectors of 16 bytes of x and of dout, and those of its next row before it waits for the sums of
// this one. Short rows share a block, and each of the block's rows has sums of its own. The order of all sums depends
// on the problem and the config alone. Limits: HBM, and registers: a vector of bf16 takes 40 of a thread.

#include <opbench/row_norm.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef RowPart<T, COLS, LANES, THREADS> Row;
constexpr int WARPS = (THREADS + 31) / 32;  // of a row

extern "C" __global__ void __launch_bounds__(THREADS* ROWS_PER_BLOCK)
    rmsnorm_backward_rows(const T* __restrict__ x, const T* __restrict__ dout, const float* __restrict__ weight,
                          const float* __restrict__ rstd,
#if ADD
                          const T* __restrict__ dsum,
#endif
                          T* __restrict__ dx, float* __restrict__ part_weight, int rows) {
    // x, dout, dsum, dx [rows][cols]; weight [cols]; rstd [rows]; parts [PARTS_USED][cols]
    __shared__ float shared[2][ROWS_PER_BLOCK][WARPS][1];  // of this row and of the next: one barrier per row
    constexpr int step = BLOCKS * ROWS_PER_BLOCK;
    int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;  // beyond the last one too, for shuffles and barriers
    Row own, given, next, next_given;
    own.load<STREAM>(x, row, row < rows);
    given.load<STREAM>(dout, row, row < rows);
    ColumnPart<Row> weights, of_weight;
    weights.load(weight);
    int turn = 0;
    for (int first = blockIdx.x * ROWS_PER_BLOCK; first < rows; first += step, row += step, turn ^= 1) {
        next.load<STREAM>(x, row + step, row + step < rows);
        next_given.load<STREAM>(dout, row + step, row + step < rows);
#if ADD
        Row added;
        added.load<STREAM>(dsum, row, row < rows);
#endif
        const float factor = row < rows ? rstd[row] : 0.0f;
        const auto normalised = [&](int k, int lane) { return own.value(k, lane) * factor; };
        float sums[1] = {};
#pragma unroll
        for (int k = 0; k < Row::items; ++k) {
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                const float slope = given.value(k, lane), product = slope * normalised(k, lane);
                of_weight.value[k][lane] += product;
                sums[0] += product * weights.value[k][lane];
            }
        }
        row_sums<THREADS>(sums, shared[turn]);
#pragma unroll
        for (int k = 0; k < Row::items; ++k) {
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                const float slope = given.value(k, lane) * weights.value[k][lane];
                float gradient = factor * (slope - normalised(k, lane) * (sums[0] / COLS));
#if ADD
                gradient += added.value(k, lane);
#endif
                own.set(k, lane, gradient);
            }
        }
        if (row < rows) own.store<STREAM>(dx, row);
        own = next;
        given = next_given;
    }
    const size_t part = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;
    of_weight.store(part_weight + part * COLS);
}

extern "C" __global__ void __launch_bounds__(512)
    rmsnorm_backward_columns(const float* __restrict__ part_weight, float* __restrict__ dweight, int parts, int cols) {
    // part_weight [parts][cols]; dweight [cols]
    add_column_parts<1>({part_weight}, {dweight}, parts, cols);
}
