// /// opbench
// title     = "grid-stride loop, with as many blocks as the GPU runs at once"
// builds_on = "scalar"
// mechanism = ["coalesced", "grid_stride"]
// tune      = { BLOCK = [256, 512], BLOCKS_PER_SM = [8, 4, 16, 32] }
//
// [[launch]]
// kernel = "add_grid_stride"
// grid   = ["min(cdiv(n, BLOCK), sm_count * BLOCKS_PER_SM)"]
// block  = ["BLOCK"]
// ///
//
// Blocks are started once instead of once per BLOCK elements (Harris, "CUDA Pro Tip: Write Flexible Kernels with
// Grid-Stride Loops", 2013). Limit: latency, as in the previous variant, because each thread still has only two loads
// of 4 bytes in flight.
extern "C" __global__ void add_grid_stride(const float* __restrict__ a, const float* __restrict__ b,
                                           float* __restrict__ out, int n) {
    // a, b, out [n]
    const unsigned stride = gridDim.x * BLOCK;
    for (unsigned i = blockIdx.x * BLOCK + threadIdx.x; i < (unsigned)n; i += stride) out[i] = a[i] + b[i];
}
