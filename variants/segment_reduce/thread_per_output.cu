// /// opbench
// title     = "one thread per output, threadIdx.x along the columns; each thread loops over its segment"
// mechanism = ["coalesced"]
// tune      = { BLOCK = [128, 64, 256] }
// define    = { BF16 = "dtype == 'bf16'", MEAN = "op == 'mean'", ACROSS = "cdiv(cols, BLOCK)" }
// supports  = { op = ["sum", "mean"], dtype = ["f32", "bf16"] }
//
// [[launch]]
// kernel = "segment_reduce_thread_per_output"
// grid   = ["segments * ACROSS"]
// block  = ["BLOCK"]
// ///
//
// The first variant: the lanes of a warp read neighbouring columns of a row. Limits: one load in flight per thread, and
// a long segment is read by few threads.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// x [rows][cols], offsets [segments + 1], out [segments][cols]
extern "C" __global__ void __launch_bounds__(BLOCK)
    segment_reduce_thread_per_output(const T* __restrict__ x, const int* __restrict__ offsets, T* __restrict__ out,
                                     int segments, int rows, int cols) {
    const int segment = blockIdx.x / ACROSS, c = blockIdx.x % ACROSS * BLOCK + threadIdx.x;
    if (c >= cols) return;
    const int first = offsets[segment], end = offsets[segment + 1];
    float sum = 0.0f;
    for (int r = first; r < end; ++r) sum += (float)x[(size_t)r * cols + c];
    out[(size_t)segment * cols + c] = (T)(MEAN ? sum / max(end - first, 1) : sum);
}
