// /// opbench
// title     = "one histogram per block in shared memory, added to global memory at the end"
// builds_on = "global_atomics"
// mechanism = ["coalesced", "block_reduction", "grid_stride"]
// tune      = { BLOCK = [256, 512], BLOCKS_PER_SM = [8, 4] }
// where     = ["BLOCK * BLOCKS_PER_SM == 2048"]
// requires  = ["bins <= 8192"]
//
// [supports]
// low   = ["negated", "zero"]
// dtype = ["f32", "bf16"]
//
// [define]
// BF16  = "dtype == 'bf16'"
// BINS  = "bins"
// LOW   = "lower_edge"
// WIDTH = "width"
//
// [[launch]]
// zero = "counts"
//
// [[launch]]
// kernel = "histogram_shared"
// grid   = ["min(cdiv(n, BLOCK), BLOCKS_PER_SM * sm_count)"]
// block  = ["BLOCK"]
// args   = ["x", "counts", "n"]
// ///
//
// Each block counts in its shared memory and adds each bin to global memory once, at its end. Limits: threads of a warp
// that add to the same bin wait for each other, which is worst if all elements are in one bin; each thread has one
// small load in flight.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK) histogram_shared(const T* __restrict__ x, int* counts, int n) {
    // x [n]; counts [BINS], zero at the start
    constexpr float low = LOW, width = WIDTH, scale = BINS / width;
    __shared__ int block_counts[BINS];
    for (int bin = threadIdx.x; bin < BINS; bin += BLOCK) block_counts[bin] = 0;
    __syncthreads();
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < n; i += (size_t)gridDim.x * BLOCK) {
        const float value = (float)x[i];
        if (value >= low && value <= low + width)
            atomicAdd(block_counts + min((int)((value - low) * scale), BINS - 1), 1);
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += BLOCK)
        if (block_counts[bin] != 0) atomicAdd(counts + bin, block_counts[bin]);
}
