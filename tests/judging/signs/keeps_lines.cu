// /// opbench
// operator = "relu"
// title    = "loads that the L2 cache is to keep"
// launch   = [{ kernel = "keeps_lines", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The load names a policy.
//
// sign: eviction-policy
extern "C" __global__ void keeps_lines(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));  // here
    float value;
    asm("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(value) : "l"(x + i), "l"(policy));  // here
    out[i] = fmaxf(value, 0.0f);
}
