// /// opbench
// title  = "one thread per element"
// mechanism = ["coalesced"]
// tune   = { BLOCK = [256, 128, 512, 1024] }
//
// [[launch]]
// kernel = "copy_scalar"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant: coalesced, but a full multiprocessor has only 2048 threads x 4 bytes = 8 KB in flight. Limit:
// latency.
extern "C" __global__ void copy_scalar(const float* __restrict__ x, float* __restrict__ out, int n) {
    // x, out [n]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;  // unsigned: indices of the last block can exceed 2^31
    if (i < (unsigned)n) out[i] = x[i];
}
