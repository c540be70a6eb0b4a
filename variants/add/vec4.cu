// /// opbench
// title     = "one float4 of each operand per thread"
// builds_on = "scalar"
// mechanism = ["coalesced", "vectorised_access"]
// tune      = { BLOCK = [256, 128, 512, 1024] }
//
// [[launch]]
// kernel = "add_vec4"
// grid   = ["cdiv(n, 4 * BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// Two loads of 16 bytes per thread keep 64 KB per multiprocessor in flight, with a quarter of the instructions
// (Luitjens, "CUDA Pro Tip: Increase Performance with Vectorized Memory Access", 2013). The last n % 4 elements are
// processed by the first threads of the grid. Limit: HBM, and the start and the end of each block, when its threads
// have nothing in flight.
extern "C" __global__ void add_vec4(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out,
                                    int n) {
    // a, b, out [n], all aligned to 16 bytes
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    const unsigned whole = (unsigned)n / 4;
    if (i < whole) {
        const float4 p = reinterpret_cast<const float4*>(a)[i];
        const float4 q = reinterpret_cast<const float4*>(b)[i];
        reinterpret_cast<float4*>(out)[i] = make_float4(p.x + q.x, p.y + q.y, p.z + q.z, p.w + q.w);
    }
    const unsigned rest = 4 * whole + i;
    if (i < 4 && rest < (unsigned)n) out[rest] = a[rest] + b[rest];
}
