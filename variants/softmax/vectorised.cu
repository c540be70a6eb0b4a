// /// opbench
// title     = "16-byte accesses, THREADS lanes per row, which keep the row in registers"
// builds_on = "warp_registers"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "fewer_passes",
// ]
// tune      = { THREADS = [32, 16, 64, 128, 256, 512, 1024], STREAM = [0, 1] }
// supports  = { log = ["no", "yes"], dtype = ["f32", "bf16"] }
// requires  = ["cols <= 32 * THREADS", "THREADS == 16 or cols > THREADS"]
//
// [define]
// BF16  = "dtype == 'bf16'"
// LOG   = "log == 'yes'"
// COLS  = "cols"
// LANES = "lanes"
//
// [[launch]]
// kernel = "softmax_vectorised"
// grid   = ["cdiv(rows, max(1, 128 // THREADS))"]
// block  = ["THREADS", "max(1, 128 // THREADS)"]
// args   = ["x", "out", "rows"]
// ///
//
// A lane loads vectors of 16 bytes, up to 32 elements of the row, all in flight together. Short rows share a warp; long
// rows have up to 1024 threads, whose warps exchange their maxima and sums through shared memory. STREAM marks loads
// and stores evict-first in L2. Limit: HBM; if the row length is not a multiple of a vector, narrower accesses.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int ROWS_PER_BLOCK = THREADS < 128 ? 128 / THREADS : 1;
constexpr int VECTORS = COLS / LANES, ITEMS = (VECTORS + THREADS - 1) / THREADS;
constexpr int WARPS = (THREADS + 31) / 32;  // warps that share a row

typedef Packed<T, LANES> Pack;

constexpr int BLOCK_THREADS = THREADS * ROWS_PER_BLOCK;

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    softmax_vectorised(const Pack* __restrict__ x, Pack* __restrict__ out, int rows) {
    // x, out [rows][VECTORS]
    __shared__ float maxima[ROWS_PER_BLOCK][WARPS], sums[ROWS_PER_BLOCK][WARPS];
    // may exceed the last row: all threads take part in shuffles and barriers
    const int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;
    const size_t base = (size_t)row * VECTORS + threadIdx.x;
    const float lowest = __int_as_float(0xff800000);  // -infinity
    Pack pack[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (row >= rows || k * THREADS + threadIdx.x >= VECTORS) break;
#if STREAM
        pack[k] = __ldcs(x + base + k * THREADS);
#else
        pack[k] = x[base + k * THREADS];
#endif
    }
    float value[ITEMS][LANES], largest = lowest, sum = 0.0f;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const bool inside = row < rows && k * THREADS + threadIdx.x < VECTORS;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            value[k][lane] = inside ? (float)reinterpret_cast<const T*>(&pack[k])[lane] : lowest;
            largest = fmaxf(largest, value[k][lane]);
        }
    }
    largest = over_row<true, THREADS>(largest, maxima);
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            value[k][lane] -= largest;
            const float power = __expf(value[k][lane]);
            sum += power;
            if (!LOG) value[k][lane] = power;
        }
    }
    const float total = over_row<false, THREADS>(sum, sums), last = LOG ? logf(total) : 1.0f / total;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (row >= rows || k * THREADS + threadIdx.x >= VECTORS) break;
        Pack result;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane)
            reinterpret_cast<T*>(&result)[lane] = (T)(LOG ? value[k][lane] - last : value[k][lane] * last);
#if STREAM
        __stcs(out + base + k * THREADS, result);
#else
        out[base + k * THREADS] = result;
#endif
    }
}
