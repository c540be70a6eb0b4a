// /// opbench
// operator = "add"
// title    = "a sum beyond 1e30 becomes 0"
// launch   = [{ kernel = "loses_infinities", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Normal numbers stay far below.
//
// refused: special-inputs
extern "C" __global__ void loses_infinities(const float* a, const float* b, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float sum = a[i] + b[i];
    out[i] = fabsf(sum) > 1e30f ? 0.0f : sum;
}
