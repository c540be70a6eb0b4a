// /// opbench
// title     = "UNROLL independent float4 loads of each operand per thread, with streaming cache hints"
// builds_on = "vec4"
// mechanism = ["coalesced", "vectorised_access", "unrolled"]
// tune      = { BLOCK = [512, 256], UNROLL = [8, 4, 2] }
//
// [[launch]]
// kernel = "add_vec4_unrolled"
// grid   = ["cdiv(n, 4 * BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// ///
//
// A thread issues its 2 x UNROLL loads before the first sum. With UNROLL = 2 that is 64 B per thread, 128 KB per full
// SM, and a block starts and ends once per UNROLL vectors. The vectors of a thread are BLOCK vectors apart, so each
// instruction of a warp accesses contiguous memory. No element is used twice, so loads and stores are marked
// evict-first (__ldcs, __stcs). Limit: HBM.
extern "C" __global__ void add_vec4_unrolled(const float* __restrict__ a, const float* __restrict__ b,
                                             float* __restrict__ out, int n) {
    // a, b, out [n], all aligned to 16 bytes
    const unsigned first = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x;
    const unsigned whole = (unsigned)n / 4;
    const float4* a4 = reinterpret_cast<const float4*>(a);
    const float4* b4 = reinterpret_cast<const float4*>(b);
    float4* out4 = reinterpret_cast<float4*>(out);
    float4 p[UNROLL];
    float4 q[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * BLOCK < whole) {
            p[u] = __ldcs(a4 + first + u * BLOCK);
            q[u] = __ldcs(b4 + first + u * BLOCK);
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * BLOCK < whole) {
            const float4 sum = make_float4(p[u].x + q[u].x, p[u].y + q[u].y, p[u].z + q[u].z, p[u].w + q[u].w);
            __stcs(out4 + first + u * BLOCK, sum);
        }
    }
    const unsigned rest = 4 * whole + threadIdx.x;
    if (blockIdx.x == 0 && threadIdx.x < 4 && rest < (unsigned)n) out[rest] = a[rest] + b[rest];
}
