// /// opbench
// title     = "UNROLL independent float4 loads per thread; STREAMING adds evict-first cache hints"
// builds_on = "vec4"
// mechanism = ["coalesced", "vectorised_access", "unrolled"]
// tune      = { BLOCK = [512, 256], UNROLL = [2, 4, 8], STREAMING = [0, 1] }
//
// [[launch]]
// kernel = "copy_vec4_unrolled"
// grid   = ["cdiv(n, 4 * BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// ///
//
// This variant measures the DRAM bandwidth (STREAMING=1, arrays much larger than L2) and the L2 bandwidth (STREAMING=0,
// both arrays fit in L2; evict-first lines would leave it first). A thread issues all its loads before the first store:
// UNROLL x 16 bytes per thread, with UNROLL=4 up to 128 KB per multiprocessor, many times what the latency needs, and
// few blocks start and end. The vectors of a thread are BLOCK apart, so each instruction is contiguous across the warp.
// Limit: HBM, and the time that its bus needs to switch between reading and writing.
extern "C" __global__ void copy_vec4_unrolled(const float* __restrict__ x, float* __restrict__ out, int n) {
    // x, out [n], both aligned to 16 bytes
    const unsigned first = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x;
    const unsigned whole = (unsigned)n / 4;
    const float4* x4 = reinterpret_cast<const float4*>(x);
    float4* out4 = reinterpret_cast<float4*>(out);
    float4 v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i < whole) v[u] = STREAMING ? __ldcs(x4 + i) : x4[i];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i < whole) {
            if (STREAMING) {
                __stcs(out4 + i, v[u]);
            } else {
                out4[i] = v[u];
            }
        }
    }
    const unsigned rest = 4 * whole + threadIdx.x;
    if (blockIdx.x == 0 && threadIdx.x < 4 && rest < (unsigned)n) out[rest] = x[rest];
}
