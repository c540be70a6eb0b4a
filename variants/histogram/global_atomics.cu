// /// opbench
// title     = "one thread per element, which increments the counter of its bin in global memory by an atomic"
// mechanism = ["coalesced"]
// tune      = { BLOCK = [256, 512] }
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
// kernel = "histogram_global"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "counts", "n"]
// ///
//
// Neighbouring threads read neighbouring elements, and each adds 1 to a counter in global memory by an atomic. Limit:
// the L2 cache performs the atomics on a counter one after the other, and all elements share a few hundred counters.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK) histogram_global(const T* __restrict__ x, int* counts, int n) {
    // x [n]; counts [BINS], zero at the start
    constexpr float low = LOW, width = WIDTH, scale = BINS / width;
    const size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n) return;
    const float value = (float)x[i];
    if (value >= low && value <= low + width) atomicAdd(counts + min((int)((value - low) * scale), BINS - 1), 1);
}
