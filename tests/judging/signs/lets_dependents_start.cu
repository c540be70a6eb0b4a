// /// opbench
// operator = "relu"
// title    = "a kernel whose dependents begin early"
// compute_capability = "9.0"
// launch   = [{ kernel = "lets_dependents_start", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Honest, if they wait before they read.
//
// sign: early-dependents
extern "C" __global__ void lets_dependents_start(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");  // here
    out[i] = fmaxf(x[i], 0.0f);
}
