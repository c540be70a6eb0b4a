// /// opbench
// title     = "16-byte accesses, AHEAD rows in flight per thread"
// builds_on = "block_per_segment"
// mechanism = ["coalesced", "vectorised_access", "block_reduction", "unrolled"]
// tune      = { ROWS = [8, 4, 16], AHEAD = [4, 8, 2] }
// supports  = { op = ["sum", "mean"], dtype = ["f32", "bf16"] }
//
// [define]
// BF16   = "dtype == 'bf16'"
// MEAN   = "op == 'mean'"
// LANES  = "lanes"
// BYTES  = "lanes * (2 if dtype == 'bf16' else 4)"
// ACROSS = "cdiv(cols, 32 * lanes)"
//
// [[launch]]
// kernel = "segment_reduce_vectorised"
// grid   = ["segments * ACROSS"]
// block  = [32, "ROWS"]
// ///
//
// A warp reads 512 bytes of a row, and issues the loads of AHEAD rows before it adds the first. Limit: HBM if there are
// many segments. If there are few, the longest segment, because one block reduces 128 columns (256 of bf16) of a
// segment.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

#if BYTES == 16
typedef uint4 Pack;
#elif BYTES == 8
typedef uint2 Pack;
#elif BYTES == 4
typedef unsigned Pack;
#else
typedef unsigned short Pack;
#endif

// x [rows][cols], offsets [segments + 1], out [segments][cols]
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    segment_reduce_vectorised(const T* __restrict__ x, const int* __restrict__ offsets, T* __restrict__ out,
                              int segments, int rows, int cols) {
    __shared__ float sums[ROWS][32 * LANES];
    const int segment = blockIdx.x / ACROSS, vectors = cols / LANES;
    const int vector = blockIdx.x % ACROSS * 32 + threadIdx.x;
    const int first = offsets[segment], end = offsets[segment + 1];
    const Pack* source = reinterpret_cast<const Pack*>(x) + vector;
    float sum[LANES] = {};
    if (vector < vectors) {
        for (int r = first + threadIdx.y; r < end; r += ROWS * AHEAD) {
            Pack pack[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; ++k)
                if (r + k * ROWS < end) pack[k] = __ldcs(source + (size_t)(r + k * ROWS) * vectors);
#pragma unroll
            for (int k = 0; k < AHEAD; ++k) {
                if (r + k * ROWS >= end) break;
#pragma unroll
                for (int i = 0; i < LANES; ++i) sum[i] += (float)reinterpret_cast<const T*>(&pack[k])[i];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < LANES; ++i) sums[threadIdx.y][i * 32 + threadIdx.x] = sum[i];  // neighbours in other banks
    __syncthreads();
    if (threadIdx.y != 0 || vector >= vectors) return;
    Pack result;
#pragma unroll
    for (int i = 0; i < LANES; ++i) {
        for (int y = 1; y < ROWS; ++y) sum[i] += sums[y][i * 32 + threadIdx.x];
        reinterpret_cast<T*>(&result)[i] = (T)(MEAN ? sum[i] / max(end - first, 1) : sum[i]);
    }
    reinterpret_cast<Pack*>(out)[(size_t)segment * vectors + vector] = result;
}
