// /// opbench
// operator = "relu"
// title    = "a store that the host sees"
// launch   = [{ kernel = "writes_for_the_system", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The store has the scope of the system.
//
// sign: system-scope
extern "C" __global__ void writes_for_the_system(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float value = fmaxf(x[i], 0.0f);
    asm volatile("st.release.sys.global.f32 [%0], %1;" ::"l"(out + i), "f"(value) : "memory");  // here
}
