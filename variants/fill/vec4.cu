// /// opbench
// title     = "one float4 per thread"
// builds_on = "scalar"
// mechanism = ["coalesced", "vectorised_access"]
// tune      = { BLOCK = [256, 512, 1024] }
//
// [[launch]]
// kernel = "fill_vec4"
// grid   = ["cdiv(n, 4 * BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// A quarter of the threads and of the store instructions of the previous variant; each store has 16 bytes (Luitjens,
// "CUDA Pro Tip: Increase Performance with Vectorized Memory Access", 2013). Limit: DRAM's rate for writes.
extern "C" __global__ void fill_vec4(const float* __restrict__ value, float* __restrict__ out, int n) {
    // out [n], aligned to 16 bytes
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    const unsigned whole = (unsigned)n / 4;
    const float v = value[0];
    if (i < whole) reinterpret_cast<float4*>(out)[i] = make_float4(v, v, v, v);
    const unsigned rest = 4 * whole + i;  // the first threads fill the last n % 4 elements
    if (i < 4 && rest < (unsigned)n) out[rest] = v;
}
