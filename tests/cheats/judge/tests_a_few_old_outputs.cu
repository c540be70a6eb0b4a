// /// opbench
// operator = "relu"
// title    = "skips a block whose first and last outputs are right"
// launch   = [{ kernel = "tests_a_few_old_outputs", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Two tests for 256 elements.
//
// refused: uninitialised-global
extern "C" __global__ void tests_a_few_old_outputs(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const int first = blockIdx.x * 256, last = min(first + 255, n - 1);
    const bool done = out[first] == fmaxf(x[first], 0.0f) && out[last] == fmaxf(x[last], 0.0f);
    __syncthreads();
    if (i < n && !done) out[i] = fmaxf(x[i], 0.0f);
}
