// /// opbench
// mechanism = ["coalesced", "vectorised_access", "block_reduction", "compile_time_sizes", "fewer_passes"]
// supports  = { norm = ["l1", "l2", "mean_abs", "rms"], dtype = ["f32", "bf16"] }
//
// [define]
// BF16    = "dtype == 'bf16'"
// SQUARES = "norm in ('l2', 'rms')"
// MEAN    = "norm in ('mean_abs', 'rms')"
// AXIS    = "axis"
// LANES   = "lanes"
//
// [variant.rows_registers]
// title     = "rows: 16-byte accesses, the row in registers, with as many threads as it needs"
// builds_on = "block_per_row"
// mechanism = ["warp_shuffle", "fewer_barriers"]
// tune      = { ITEMS = [4, 2, 8, 1], STREAM = [0, 1] }
// requires  = ["inner == 1", "THREADS <= 1024", "THREADS * (16 * ITEMS + 32) <= 65536"]
//
// [variant.rows_registers.define]
// ROWS           = "1"
// VECTORS        = "axis // lanes"
// THREADS        = "8 if VECTORS <= 8 else (16 if VECTORS <= 16 else 32 * cdiv(VECTORS, 32 * ITEMS))"
// ROWS_PER_BLOCK = "max(1, 128 // THREADS)"
//
// [[variant.rows_registers.launch]]
// kernel = "normalize_rows"
// grid   = ["cdiv(outer, ROWS_PER_BLOCK)"]
// block  = ["THREADS", "ROWS_PER_BLOCK"]
// args   = ["x", "out", "outer"]
//
// [variant.columns_registers]
// title     = "columns: 16-byte accesses, HEIGHT warps keep 32 vectors of groups in registers"
// builds_on = "columns"
// mechanism = ["bank_conflict_free"]
// tune      = { HEIGHT = [8, 16, 4, 32], STREAM = [0, 1] }
// requires  = ["inner > 1", "cdiv(axis, HEIGHT) <= 8", "outer * cdiv(inner // lanes, 32) < 2 ** 31"]
// define    = { ROWS = "0", INNER = "inner" }
//
// [[variant.columns_registers.launch]]
// kernel = "normalize_columns_registers"
// grid   = ["outer * cdiv(inner // lanes, 32)"]
// block  = [32, "HEIGHT"]
// args   = ["x", "out"]
// ///
//
// x is read once: it stays in registers until the sums are computed. All loads of a thread are in flight together.
// Short rows share a block; long rows have up to 1024 threads. STREAM marks all accesses evict-first in L2. Limit: HBM.
// Axes that do not fit in the registers of a block need the previous variants or split. After rmsnorm/vectorised.

#include <opbench/row_norm.cuh>
using namespace opbench;

typedef Element<BF16> T;

// Return the factor for the elements of a group, from the sum of their absolute values or squares.
__device__ __forceinline__ float factor_of(float sum, int axis) {
    const float base = MEAN ? sum / (float)axis : sum;
    return SQUARES ? rsqrtf(base + (MEAN ? 1e-5f : 0.0f)) : 1.0f / base;
}
__device__ __forceinline__ float term(float x) { return SQUARES ? x * x : fabsf(x); }

#if ROWS
typedef RowPart<T, AXIS, LANES, THREADS> Row;

// x, out [rows][AXIS]
extern "C" __global__ void __launch_bounds__(THREADS* ROWS_PER_BLOCK)
    normalize_rows(const T* __restrict__ x, T* __restrict__ out, int rows) {
    __shared__ float sums[ROWS_PER_BLOCK][(THREADS + 31) / 32];
    // may exceed the last row: all threads take part in shuffles and barriers
    const int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;
    Row row_values;
    row_values.load<STREAM>(x, row, row < rows);
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < Row::items; ++k)
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane)
            sum += term(row_values.value(k, lane));  // elements after the end are 0
    const float factor = factor_of(over_row<false, THREADS>(sum, sums), AXIS);
#pragma unroll
    for (int k = 0; k < Row::items; ++k)
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) row_values.set(k, lane, row_values.value(k, lane) * factor);
    if (row < rows) row_values.store<STREAM>(out, row);
}
#else
typedef Packed<T, LANES> Pack;
constexpr int VECTORS_OF_ROW = INNER / LANES, TILES = (VECTORS_OF_ROW + 31) / 32, COUNT = (AXIS + HEIGHT - 1) / HEIGHT;

// x, out [outer][AXIS][INNER]; block (32, HEIGHT): x is a vector of groups
extern "C" __global__ void __launch_bounds__(32 * HEIGHT)
    normalize_columns_registers(const T* __restrict__ x, T* __restrict__ out) {
    __shared__ float sums[HEIGHT][LANES][32];
    const int vector = (int)(blockIdx.x % TILES) * 32 + threadIdx.x;
    const size_t first = (size_t)(blockIdx.x / TILES) * AXIS * VECTORS_OF_ROW + vector;
    const Pack* from = reinterpret_cast<const Pack*>(x) + first;
    Pack packs[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int at = i * HEIGHT + threadIdx.y;
        packs[i] = Pack();
        if (vector < VECTORS_OF_ROW && at < AXIS) packs[i] = load_packed<STREAM>(from + (size_t)at * VECTORS_OF_ROW);
    }
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sum += term(lane_of<T>(packs[i], lane));
        sums[threadIdx.y][lane][threadIdx.x] = sum;
    }
    __syncthreads();
    if (vector >= VECTORS_OF_ROW) return;
    float factor[LANES];
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        float sum = 0.0f;
#pragma unroll
        for (int y = 0; y < HEIGHT; ++y) sum += sums[y][lane][threadIdx.x];
        factor[lane] = factor_of(sum, AXIS);
    }
    Pack* to = reinterpret_cast<Pack*>(out) + first;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int at = i * HEIGHT + threadIdx.y;
        if (at >= AXIS) break;
        Vector<T, LANES> result;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) result.lane(lane) = (T)(lane_of<T>(packs[i], lane) * factor[lane]);
        store_packed<STREAM>(to + (size_t)at * VECTORS_OF_ROW, result.raw);
    }
}
#endif
