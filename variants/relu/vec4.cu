// /// opbench
// title     = "one float4 per thread"
// builds_on = "scalar"
// mechanism = ["coalesced", "vectorised_access"]
// tune      = { BLOCK = [256, 128, 512, 1024] }
//
// [[launch]]
// kernel = "relu_vec4"
// grid   = ["cdiv(n, 4 * BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// A load of 16 bytes per thread keeps 32 KB per multiprocessor in flight, with a quarter of the instructions (Luitjens,
// "CUDA Pro Tip: Increase Performance with Vectorized Memory Access", 2013). The last n % 4 elements are processed by
// the first threads of the grid. Limit: HBM, and the start and the end of each block, when its threads have nothing in
// flight.
extern "C" __global__ void relu_vec4(const float* __restrict__ x, float* __restrict__ out, int n) {
    // x, out [n], both aligned to 16 bytes
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    const unsigned whole = (unsigned)n / 4;
    if (i < whole) {
        float4 v = reinterpret_cast<const float4*>(x)[i];
        v.x = fmaxf(v.x, 0.0f);
        v.y = fmaxf(v.y, 0.0f);
        v.z = fmaxf(v.z, 0.0f);
        v.w = fmaxf(v.w, 0.0f);
        reinterpret_cast<float4*>(out)[i] = v;
    }
    const unsigned rest = 4 * whole + i;
    if (i < 4 && rest < (unsigned)n) out[rest] = fmaxf(x[rest], 0.0f);
}
