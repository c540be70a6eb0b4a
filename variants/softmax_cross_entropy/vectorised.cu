// /// opbench
// title     = "16-byte accesses, THREADS lanes per row, which keep the row in registers; one loss per block"
// builds_on = "warp_registers"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "fewer_passes", "fused",
// ]
// tune      = { THREADS = [32, 16, 64, 128, 256, 512, 1024], STREAM = [0, 1] }
// supports  = { dtype = ["f32", "bf16"] }
// requires  = ["cols <= 32 * THREADS", "THREADS == 16 or cols > THREADS"]
// workspace = { partial = "cdiv(rows, ROWS_PER_BLOCK)" }
//
// [define]
// BF16           = "dtype == 'bf16'"
// COLS           = "cols"
// LANES          = "lanes"
// ROWS_PER_BLOCK = "max(1, 128 // THREADS)"
//
// [[launch]]
// kernel = "loss_and_gradient"
// grid   = ["cdiv(rows, ROWS_PER_BLOCK)"]
// block  = ["THREADS", "ROWS_PER_BLOCK"]
// args   = ["logits", "labels", "dlogits", "partial", "rows", "micro"]
//
// [[launch]]
// kernel = "mean_of_partials"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["partial", "loss", "cdiv(rows, ROWS_PER_BLOCK)", "rows", "micro"]
// ///
//
// A lane loads vectors of 16 bytes, up to 32 elements of the row, all in flight together. Short rows share a warp; long
// rows have up to 1024 threads, whose warps exchange their maxima and sums through shared memory. The losses of a
// block's rows are added in order. STREAM marks loads and stores evict-first in L2. Limit: HBM; if the row length is
// not a multiple of a vector, narrower accesses.

#include <opbench/loss.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;

constexpr int VECTORS = COLS / LANES, ITEMS = (VECTORS + THREADS - 1) / THREADS;
constexpr int WARPS = (THREADS + 31) / 32;  // warps that share a row

typedef Packed<T, LANES> Pack;

constexpr int BLOCK_THREADS = THREADS * ROWS_PER_BLOCK;

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    loss_and_gradient(const Pack* __restrict__ logits, const int* __restrict__ labels, Pack* __restrict__ dlogits,
                      float* __restrict__ partial, int rows, int micro) {
    // logits, dlogits [rows][VECTORS]; labels [rows]; partial: one sum per block
    __shared__ float maxima[ROWS_PER_BLOCK][WARPS], sums[ROWS_PER_BLOCK][WARPS], losses[ROWS_PER_BLOCK];
    // may exceed the last row: all threads take part in shuffles and barriers
    const int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;
    const size_t base = (size_t)row * VECTORS + threadIdx.x;
    const float lowest = __int_as_float(0xff800000), nan = __int_as_float(0x7fc00000);  // lowest: -infinity
    const float scale = 1.0f / (float)((long long)rows * micro);
    const int label = row < rows ? labels[row] : 0;
    const bool valid = label >= 0 && label < COLS;
    Pack pack[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (row >= rows || k * THREADS + threadIdx.x >= VECTORS) break;
        pack[k] = STREAM ? __ldcs(logits + base + k * THREADS) : logits[base + k * THREADS];
    }
    float of_label = 0.0f;
    if (row < rows) of_label = valid ? (float)reinterpret_cast<const T*>(logits)[(size_t)row * COLS + label] : nan;
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
            value[k][lane] = __expf(value[k][lane] - largest);
            sum += value[k][lane];
        }
    }
    sum = over_row<false, THREADS>(sum, sums);
    if (threadIdx.x == 0) losses[threadIdx.y] = row < rows ? logf(sum) - (of_label - largest) : 0.0f;
    const float factor = valid ? 1.0f / sum : nan;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int first = (k * THREADS + threadIdx.x) * LANES;
        if (row >= rows || first >= COLS) break;
        Pack result;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float slope = (value[k][lane] * factor - (first + lane == label ? 1.0f : 0.0f)) * scale;
            reinterpret_cast<T*>(&result)[lane] = (T)slope;
        }
        if (STREAM) {
            __stcs(dlogits + base + k * THREADS, result);
        } else {
            dlogits[base + k * THREADS] = result;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        float total = 0.0f;
        for (int r = 0; r < ROWS_PER_BLOCK; ++r) total += losses[r];
        partial[blockIdx.x] = total;
    }
}

extern "C" __global__ void __launch_bounds__(1024)
    mean_of_partials(const float* __restrict__ partial, float* __restrict__ loss, int count, int rows, int micro) {
    // partial [count]; loss [1]; one block of 1024 threads
    store_mean_loss(partial, loss, count, rows, micro);
}
