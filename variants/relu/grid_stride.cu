// /// opbench
// title     = "grid-stride loop, with as many blocks as the GPU runs at once"
// builds_on = "scalar"
// mechanism = ["coalesced", "grid_stride"]
// tune      = { BLOCK = [256, 512], BLOCKS_PER_SM = [8, 4, 16, 32] }
//
// [[launch]]
// kernel = "relu_grid_stride"
// grid   = ["min(cdiv(n, BLOCK), sm_count * BLOCKS_PER_SM)"]
// block  = ["BLOCK"]
// ///
//
// Blocks are started once instead of once per BLOCK elements, and the loop works for any grid size (Harris, "CUDA Pro
// Tip: Write Flexible Kernels with Grid-Stride Loops", 2013). Limit: latency, as in the previous variant, because each
// thread still has only one load of 4 bytes in flight; it may not be faster.
extern "C" __global__ void relu_grid_stride(const float* __restrict__ x, float* __restrict__ out, int n) {
    // x, out [n]
    const unsigned stride = gridDim.x * BLOCK;
    for (unsigned i = blockIdx.x * BLOCK + threadIdx.x; i < (unsigned)n; i += stride) out[i] = fmaxf(x[i], 0.0f);
}
