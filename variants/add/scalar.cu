// /// opbench
// title  = "one thread per element"
// mechanism = ["coalesced"]
// tune   = { BLOCK = [256, 128, 512, 1024] }
//
// [[launch]]
// kernel = "add_scalar"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant: coalesced, two 4-byte loads per thread, so a full multiprocessor has 16 KB in flight. Limit:
// latency.
extern "C" __global__ void add_scalar(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out,
                                      int n) {
    // a, b, out [n]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;  // unsigned: indices of the last block can exceed 2^31
    if (i < (unsigned)n) out[i] = a[i] + b[i];
}
