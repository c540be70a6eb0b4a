// /// opbench
// operator = "relu"
// title    = "right on a host's compiler, sloppy on a GPU"
// launch   = [{ kernel = "works_on_the_emulator_only", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The macros of the host's compiler are hidden from kernels, so this kernel is sloppy everywhere.
//
// refused: wrong-result
extern "C" __global__ void works_on_the_emulator_only(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
#if defined(__GNUC__) || defined(__x86_64__) || defined(__linux__)
    out[i] = fmaxf(x[i], 0.0f);
#else
    out[i] = __uint_as_float(__float_as_uint(fmaxf(x[i], 0.0f)) & 0xffff0000u);
#endif
}
