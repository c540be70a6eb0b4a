// /// opbench
// title     = "one float4 per thread"
// builds_on = "scalar"
// mechanism = ["coalesced", "vectorised_access"]
// tune      = { BLOCK = [256, 128, 512, 1024] }
//
// [[launch]]
// kernel = "copy_vec4"
// grid   = ["cdiv(n, 4 * BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// A 16-byte load per thread puts 32 KB in flight per SM (Luitjens, "CUDA Pro Tip: Increase Performance with Vectorized
// Memory Access", 2013). Limit: at the start and the end of each block, its threads have no load in flight.
extern "C" __global__ void copy_vec4(const float* __restrict__ x, float* __restrict__ out, int n) {
    // x, out [n], both aligned to 16 bytes
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    const unsigned whole = (unsigned)n / 4;
    if (i < whole) reinterpret_cast<float4*>(out)[i] = reinterpret_cast<const float4*>(x)[i];
    const unsigned rest = 4 * whole + i;  // the n % 4 elements left over go to the first threads
    if (i < 4 && rest < (unsigned)n) out[rest] = x[rest];
}
