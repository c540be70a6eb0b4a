// /// opbench
// title     = "16-byte accesses, THREADS lanes per row with the row in registers"
// builds_on = "warp_registers"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "fewer_passes",
// ]
// tune      = { THREADS = [32, 16, 64, 128, 256, 512, 1024], STREAM = [0, 1] }
// supports  = { dtype = ["f32", "bf16"] }
// requires  = ["cols <= 32 * THREADS", "THREADS == 16 or cols > THREADS"]
//
// [define]
// BF16  = "dtype == 'bf16'"
// COLS  = "cols"
// LANES = "lanes"
//
// [[launch]]
// kernel = "layernorm_vectorised"
// grid   = ["cdiv(rows, max(1, 128 // THREADS))"]
// block  = ["THREADS", "max(1, 128 // THREADS)"]
// args   = ["x", "weight", "bias", "out", "mean", "rstd", "rows"]
// ///
//
// A lane loads vectors of 16 bytes, up to 32 elements of the row, all in flight together. Short rows share a warp, long
// ones have up to 1024 threads, whose warps exchange their sums through shared memory. Weight and bias come from the L2
// cache, 16 bytes at a time. STREAM marks rows evict-first. Limit: HBM, and for rows that no vector divides the narrower
// accesses.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int ROWS_PER_BLOCK = THREADS < 128 ? 128 / THREADS : 1;
constexpr int VECTORS = COLS / LANES, ITEMS = (VECTORS + THREADS - 1) / THREADS;
constexpr int WARPS = (THREADS + 31) / 32;     // of a row
constexpr int FLOATS = LANES < 4 ? LANES : 4;  // of weight and bias in one access

typedef Packed<T, LANES> Pack;
typedef Packed<float, FLOATS> Floats;

constexpr int BLOCK_THREADS = THREADS * ROWS_PER_BLOCK;

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    layernorm_vectorised(const Pack* __restrict__ x, const Floats* __restrict__ weight, const Floats* __restrict__ bias,
                         Pack* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, int rows) {
    // x, out: rows VECTORS; mean, rstd: rows
    __shared__ float sums[ROWS_PER_BLOCK][WARPS], squared[ROWS_PER_BLOCK][WARPS];
    const int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;  // beyond the last one too, for shuffles and barriers
    const size_t base = (size_t)row * VECTORS + threadIdx.x;
    Pack pack[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (row >= rows || k * THREADS + threadIdx.x >= VECTORS) break;
        pack[k] = load_packed<STREAM>(x + base + k * THREADS);
    }
    float value[ITEMS][LANES], sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const bool inside = row < rows && k * THREADS + threadIdx.x < VECTORS;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            value[k][lane] = inside ? lane_of<T>(pack[k], lane) : 0.0f;
            sum += value[k][lane];
        }
    }
    const float middle = over_row<false, THREADS>(sum, sums) / COLS;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const bool inside = row < rows && k * THREADS + threadIdx.x < VECTORS;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            value[k][lane] -= middle;
            if (inside) squares += value[k][lane] * value[k][lane];
        }
    }
    const float factor = rsqrtf(over_row<false, THREADS>(squares, squared) / COLS + 1e-5f);
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int vector = k * THREADS + threadIdx.x;
        if (row >= rows || vector >= VECTORS) break;
        Vector<T, LANES> result;
#pragma unroll
        for (int part = 0; part < LANES / FLOATS; ++part) {
            const Floats factors = weight[vector * (LANES / FLOATS) + part];
            const Floats added = bias[vector * (LANES / FLOATS) + part];
#pragma unroll
            for (int i = 0; i < FLOATS; ++i) {
                const int lane = part * FLOATS + i;
                result.lane(lane) =
                    (T)(value[k][lane] * factor * lane_of<float>(factors, i) + lane_of<float>(added, i));
            }
        }
        store_packed<STREAM>(out + base + k * THREADS, result.raw);
    }
    if (row < rows && threadIdx.x == 0) {
        mean[row] = middle;
        rstd[row] = factor;
    }
}
