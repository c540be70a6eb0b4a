// /// opbench
// title  = "one thread per element"
// mechanism = ["coalesced"]
// tune   = { BLOCK = [256, 128, 512, 1024] }
//
// [[launch]]
// kernel = "relu_scalar"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant: neighbouring threads access neighbouring floats, so every sector is used whole. Limit: latency. A
// full SM has 2048 threads x 4 B = 8 KB of loads in flight, but HBM's latency requires some 13 KB and more per SM
// (Little's law: bandwidth x latency); and a block has only one load per thread before it ends.
extern "C" __global__ void relu_scalar(const float* __restrict__ x, float* __restrict__ out, int n) {
    // x, out [n]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;  // unsigned: the last block may reach past 2^31
    if (i < (unsigned)n) out[i] = fmaxf(x[i], 0.0f);
}
