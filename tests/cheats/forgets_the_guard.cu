// /// opbench
// operator = "relu"
// title    = "whole blocks and no test against n"
// launch   = [{ kernel = "forgets_the_guard", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The last block hangs over the end; right where 256 divides n.
// expect: forgets_the_guard.cu:11: out-of-bounds: read of 4 bytes
extern "C" __global__ void forgets_the_guard(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    out[i] = fmaxf(x[i], 0.0f);
}
