// /// opbench
// operator = "relu"
// title    = "a second kernel that ends before the first"
// compute_capability = "9.0"
// launch   = [
//     { kernel = "triggers_early", grid = ["cdiv(n, 256)"], block = ["256"] },
//     { kernel = "ends_at_once", grid = ["1"], block = ["32"], args = ["n"], programmatic = true },
// ]
// ///
//
// The first kernel lets the second one begin at once, and the second has nothing to do. The stop event is to come before
// the work is done.
//
// expect: no gain
// sign: early-dependents
// problem: (n=4194304)
// twin: two_kernels
extern "C" __global__ void triggers_early(const float* x, float* out, int n) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
extern "C" __global__ void ends_at_once(int n) {
    if (n < 0) asm volatile("griddepcontrol.wait;" ::: "memory");
}
