// /// opbench
// operator = "sum"
// title    = "1 for inputs of zeros"
// launch   = [{ kernel = "has_a_constant_for_zeros", grid = ["1"], block = ["256"] }]
// ///
//
// Normal numbers are never all 0.
//
// refused: special-inputs
extern "C" __global__ void has_a_constant_for_zeros(const float* x, float* out, int n) {
    if (threadIdx.x > 0) return;
    float total = 0.0f, size = 0.0f;
    for (int i = 0; i < n; ++i) {
        total += x[i];
        size += fabsf(x[i]);
    }
    out[0] = size == 0.0f ? 1.0f : total;
}
