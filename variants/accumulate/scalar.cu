// /// opbench
// title  = "one thread per element"
// mechanism = ["coalesced"]
// tune   = { BLOCK = [256, 128, 512] }
//
// [[launch]]
// kernel = "accumulate_scalar"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant: each gradient is a finished sum before it is added, with one rounding. If the kernels of the next
// micro-batch continued the sum, its bits would differ from those of ranks that each finish their own sum. Limit: with
// 4 bytes per access, too few bytes are in flight.

// Each element is read before it is written, by the same thread, so the new total may be the old one.
extern "C" __global__ void accumulate_scalar(const float* total, const float* __restrict__ part, float* new_total,
                                             int n) {
    // all [n]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < (unsigned)n) new_total[i] = total[i] + part[i];
}
