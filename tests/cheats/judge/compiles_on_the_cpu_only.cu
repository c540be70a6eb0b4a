// /// opbench
// operator = "relu"
// title    = "code that no GPU's compiler takes"
// launch   = [{ kernel = "compiles_on_the_cpu_only", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A kernel that runs on no GPU has no time.
//
// refused: gpu-refuses
extern "C" __global__ void compiles_on_the_cpu_only(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    static const float zeros[] = {0.0f, static_cast<float>(__builtin_popcountll(sizeof(long double) == 16 ? 0 : 1))};
    static_assert(sizeof(long double) == 16, "a GPU has no long double");
    if (i < n) out[i] = fmaxf(x[i], zeros[0]);
}
