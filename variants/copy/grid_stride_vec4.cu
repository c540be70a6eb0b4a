// /// opbench
// title     = "grid-stride loop with UNROLL float4 loads in flight, as many blocks as the GPU runs at once"
// builds_on = "vec4_unrolled"
// mechanism = ["coalesced", "vectorised_access", "unrolled", "grid_stride"]
// tune      = { BLOCK = [256, 512], BLOCKS_PER_SM = [8, 4, 16], UNROLL = [4, 2, 1] }
// where     = ["BLOCK * BLOCKS_PER_SM <= 4096"]
//
// [[launch]]
// kernel = "copy_grid_stride_vec4"
// grid   = ["min(cdiv(n, 4 * BLOCK), sm_count * BLOCKS_PER_SM)"]
// block  = ["BLOCK"]
// ///
//
// Blocks start only once in the whole run. But a thread's next loads wait behind its own stores, and multiprocessors
// with more blocks' shares than others finish last. This variant shows which effect is larger. Limit: HBM.
extern "C" __global__ void copy_grid_stride_vec4(const float* __restrict__ x, float* __restrict__ out, int n) {
    // x, out [n], both aligned to 16 bytes
    const unsigned whole = (unsigned)n / 4;
    const unsigned stride = gridDim.x * BLOCK;
    const unsigned thread = blockIdx.x * BLOCK + threadIdx.x;
    const float4* x4 = reinterpret_cast<const float4*>(x);
    float4* out4 = reinterpret_cast<float4*>(out);
    for (unsigned first = thread; first < whole; first += UNROLL * stride) {
        float4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (first + u * stride < whole) v[u] = __ldcs(x4 + first + u * stride);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (first + u * stride < whole) __stcs(out4 + first + u * stride, v[u]);
        }
    }
    const unsigned rest = 4 * whole + thread;  // the first threads copy the last n % 4 elements
    if (thread < 4 && rest < (unsigned)n) out[rest] = x[rest];
}
