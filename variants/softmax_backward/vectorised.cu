// /// opbench
// title     = "16-byte accesses, THREADS lanes per row, which keep both rows in registers: read once"
// builds_on = "block_per_row"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "fewer_passes",
// ]
// tune      = { THREADS = [32, 16, 64, 128, 256, 512, 1024], STREAM = [0, 1] }
// supports  = { dtype = ["f32", "bf16"] }
// requires  = ["cols <= min(32 * THREADS, 16384)", "THREADS == 16 or cols > THREADS"]
//
// [define]
// BF16  = "dtype == 'bf16'"
// COLS  = "cols"
// LANES = "lanes"
// BYTES = "(2 if dtype == 'bf16' else 4) * LANES"
// PACK  = "'unsigned short' if BYTES == 2 else 'unsigned' if BYTES == 4 else 'uint2' if BYTES == 8 else 'uint4'"
//
// [[launch]]
// kernel = "softmax_backward_vectorised"
// grid   = ["cdiv(rows, max(1, 128 // THREADS))"]
// block  = ["THREADS", "max(1, 128 // THREADS)"]
// args   = ["out", "dout", "dx", "rows"]
// ///
//
// A lane loads vectors of 16 bytes, up to 32 elements of each of both rows, all in flight together. Short rows share a
// warp; long rows have up to 1024 threads, whose warps exchange their sums through shared memory. Every sum is a tree
// in the order of the lanes. STREAM marks all three arrays evict-first in L2. Limit: HBM; if the row length is not a
// multiple of a vector, narrower accesses. Rows that do not fit in the registers of 1024 threads need the previous
// variant.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int ROWS_PER_BLOCK = THREADS < 128 ? 128 / THREADS : 1;
constexpr int VECTORS = COLS / LANES, ITEMS = (VECTORS + THREADS - 1) / THREADS;
constexpr int WARPS = (THREADS + 31) / 32;  // warps that share a row
typedef PACK Pack;                          // the vector of one load or store

__device__ __forceinline__ float lane_of(const Pack& pack, int lane) {
    return (float)reinterpret_cast<const T*>(&pack)[lane];
}

__device__ __forceinline__ Pack load(const Pack* source) { return STREAM ? __ldcs(source) : *source; }

constexpr int BLOCK_THREADS = THREADS * ROWS_PER_BLOCK;

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    softmax_backward_vectorised(const Pack* __restrict__ out, const Pack* __restrict__ dout, Pack* __restrict__ dx,
                                int rows) {
    // out, dout, dx [rows][VECTORS]
    __shared__ float warps[ROWS_PER_BLOCK][WARPS];
    // may exceed the last row: all threads take part in shuffles and barriers
    const int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;
    const size_t base = (size_t)row * VECTORS + threadIdx.x;
    Pack value[ITEMS], gradient[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (row >= rows || k * THREADS + threadIdx.x >= VECTORS) break;
        value[k] = load(out + base + k * THREADS);
        gradient[k] = load(dout + base + k * THREADS);
    }
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (row >= rows || k * THREADS + threadIdx.x >= VECTORS) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) sum += lane_of(value[k], lane) * lane_of(gradient[k], lane);
    }
#pragma unroll
    for (int step = (THREADS < 32 ? THREADS : 32) / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    if (WARPS > 1) {
        if (threadIdx.x % 32 == 0) warps[threadIdx.y][threadIdx.x / 32] = sum;
        __syncthreads();
        sum = warps[threadIdx.y][0];
#pragma unroll
        for (int warp = 1; warp < WARPS; ++warp) sum += warps[threadIdx.y][warp];
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (row >= rows || k * THREADS + threadIdx.x >= VECTORS) break;
        Pack result;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            reinterpret_cast<T*>(&result)[lane] = (T)(lane_of(value[k], lane) * (lane_of(gradient[k], lane) - sum));
        }
#if STREAM
        __stcs(dx + base + k * THREADS, result);
#else
        dx[base + k * THREADS] = result;
#endif
    }
}
