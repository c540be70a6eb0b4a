// /// opbench
// operator = "relu"
// title    = "right where the emulator's macros are"
// launch   = [{ kernel = "tells_the_emulator_by_its_macros", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// They are hidden from kernels.
//
// refused: does-not-compile
extern "C" __global__ void tells_the_emulator_by_its_macros(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
#if defined(OPB_TRACE) || defined(OPB_SITE) || !defined(__CUDACC_RTC__)
    out[i] = fmaxf(x[i], 0.0f);
#else
    out[i] = x[i];
#endif
}
