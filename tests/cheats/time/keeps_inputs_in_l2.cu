// /// opbench
// operator = "relu"
// title    = "evict_last for all of its input"
// launch   = [{ kernel = "keeps_inputs_in_l2", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The input is to outlive the flush in the L2 cache. The flush writes and reads twice what the cache holds, and the
// inputs of the next sample lie elsewhere.
//
// expect: no gain
// sign: eviction-policy
// problem: (n=4194304)
// twin: relu
extern "C" __global__ void keeps_inputs_in_l2(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    unsigned long long policy;
    float value;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(value) : "l"(x + i), "l"(policy));
    out[i] = fmaxf(value, 0.0f);
}
