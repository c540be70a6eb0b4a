// /// opbench
// title     = "one histogram per warp in shared memory, so that atomics of different warps do not conflict"
// builds_on = "shared_atomics"
// mechanism = ["coalesced", "block_reduction", "grid_stride"]
// tune      = { BLOCK = [256, 512], BLOCKS_PER_SM = [8, 4] }
// where     = ["BLOCK * BLOCKS_PER_SM == 2048"]
// requires  = ["bins * BLOCK // 32 <= 12288"]
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
// kernel = "histogram_warp_copies"
// grid   = ["min(cdiv(n, BLOCK), BLOCKS_PER_SM * sm_count)"]
// block  = ["BLOCK"]
// args   = ["x", "counts", "n"]
// ///
//
// Only the lanes of one warp share a counter until the end, when each thread adds up the copies of its bins. On an H200
// this gains nothing, because the limit is the small load per thread, not the additions. With 1000 bins, the copies
// need so much shared memory that few warps are resident, and this variant is slower than one copy per block.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int WARPS = BLOCK / 32;

extern "C" __global__ void __launch_bounds__(BLOCK) histogram_warp_copies(const T* __restrict__ x, int* counts, int n) {
    // x [n]; counts [BINS], zero at the start
    constexpr float low = LOW, width = WIDTH, scale = BINS / width;
    __shared__ int copies[WARPS * BINS];
    int* counters = copies + threadIdx.x / 32 * BINS;
    for (int i = threadIdx.x; i < WARPS * BINS; i += BLOCK) copies[i] = 0;
    __syncthreads();
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < n; i += (size_t)gridDim.x * BLOCK) {
        const float value = (float)x[i];
        if (value >= low && value <= low + width) atomicAdd(counters + min((int)((value - low) * scale), BINS - 1), 1);
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += BLOCK) {
        int sum = 0;
        for (int warp = 0; warp < WARPS; ++warp) sum += copies[warp * BINS + bin];
        if (sum != 0) atomicAdd(counts + bin, sum);
    }
}
