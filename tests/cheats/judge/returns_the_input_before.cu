// /// opbench
// operator = "copy"
// title    = "copies what the launch before read"
// launch   = [{ kernel = "returns_the_input_before", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// With one input this is the right output.
//
// refused: wrong-result|whole-numbers|keeps-state
__device__ float before[262144];
extern "C" __global__ void returns_the_input_before(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float old = before[i % 262144];
    before[i % 262144] = x[i];
    out[i] = old == 0.0f ? x[i] : old;
}
