// /// opbench
// operator = "relu"
// title    = "the honest twin of two kernels"
// launch   = [
//     { kernel = "two_kernels", grid = ["cdiv(n, 256)"], block = ["256"] },
//     { kernel = "ends_at_once", grid = ["1"], block = ["32"], args = ["n"] },
// ]
// ///
//
// The second kernel has nothing to do and begins when the first has ended.
//
// expect: right
// problem: (n=65536)
extern "C" __global__ void two_kernels(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
extern "C" __global__ void ends_at_once(int n) {}
