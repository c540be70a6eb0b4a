// /// opbench
// title     = "one block of 32 columns x ROWS rows per segment, partial results combined in shared memory"
// builds_on = "thread_per_output"
// mechanism = ["coalesced", "block_reduction"]
// tune      = { ROWS = [8, 16, 32] }
// define    = { BF16 = "dtype == 'bf16'", MEAN = "op == 'mean'", ACROSS = "cdiv(cols, 32)" }
// supports  = { op = ["sum", "mean"], dtype = ["f32", "bf16"] }
//
// [[launch]]
// kernel = "segment_reduce_block_per_segment"
// grid   = ["segments * ACROSS"]
// block  = [32, "ROWS"]
// ///
//
// A warp reads every ROWS-th row of the segment, so ROWS times as many loads are in flight. Limits: 4 bytes (2 in bf16)
// per access, and a long segment still has only one block per 32 columns.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// x [rows][cols], offsets [segments + 1], out [segments][cols]
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    segment_reduce_block_per_segment(const T* __restrict__ x, const int* __restrict__ offsets, T* __restrict__ out,
                                     int segments, int rows, int cols) {
    __shared__ float sums[ROWS][32];
    const int segment = blockIdx.x / ACROSS, c = blockIdx.x % ACROSS * 32 + threadIdx.x;
    const int first = offsets[segment], end = offsets[segment + 1];
    float sum = 0.0f;
    if (c < cols)
        for (int r = first + threadIdx.y; r < end; r += ROWS) sum += (float)x[(size_t)r * cols + c];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || c >= cols) return;
    for (int y = 1; y < ROWS; ++y) sum += sums[y][threadIdx.x];
    out[(size_t)segment * cols + c] = (T)(MEAN ? sum / max(end - first, 1) : sum);
}
