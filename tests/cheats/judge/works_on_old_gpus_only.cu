// /// opbench
// operator = "relu"
// title    = "right before Hopper"
// launch   = [{ kernel = "works_on_old_gpus_only", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Both branches are checked as the GPU that is asked for.
//
// refused: wrong-result
extern "C" __global__ void works_on_old_gpus_only(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
#if __CUDA_ARCH__ < 900
    out[i] = fmaxf(x[i], 0.0f);
#else
    out[i] = x[i];
#endif
}
