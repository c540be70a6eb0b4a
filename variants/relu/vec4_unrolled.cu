// /// opbench
// title     = "UNROLL independent float4 loads per thread, with streaming cache hints"
// builds_on = "vec4"
// mechanism = ["coalesced", "vectorised_access", "unrolled"]
// tune      = { BLOCK = [512, 256], UNROLL = [2, 4, 8] }
//
// [[launch]]
// kernel = "relu_vec4_unrolled"
// grid   = ["cdiv(n, 4 * BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// ///
//
// A thread issues all its loads before it uses the first value: UNROLL x 16 bytes in flight per thread, 64 KB per
// multiprocessor and more, and one start and end of a block per UNROLL vectors. The vectors of a thread are BLOCK
// apart, so the loads of one instruction are contiguous across the warp. Nothing is used twice, so loads and stores are
// marked evict-first (__ldcs, __stcs) and leave the L2 cache to other data. Limit: HBM.
extern "C" __global__ void relu_vec4_unrolled(const float* __restrict__ x, float* __restrict__ out, int n) {
    // x, out [n], both aligned to 16 bytes
    const unsigned first = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x;
    const unsigned whole = (unsigned)n / 4;
    const float4* x4 = reinterpret_cast<const float4*>(x);
    float4* out4 = reinterpret_cast<float4*>(out);
    float4 v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * BLOCK < whole) v[u] = __ldcs(x4 + first + u * BLOCK);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * BLOCK < whole) {
            v[u].x = fmaxf(v[u].x, 0.0f);
            v[u].y = fmaxf(v[u].y, 0.0f);
            v[u].z = fmaxf(v[u].z, 0.0f);
            v[u].w = fmaxf(v[u].w, 0.0f);
            __stcs(out4 + first + u * BLOCK, v[u]);
        }
    }
    const unsigned rest = 4 * whole + threadIdx.x;
    if (blockIdx.x == 0 && threadIdx.x < 4 && rest < (unsigned)n) out[rest] = fmaxf(x[rest], 0.0f);
}
