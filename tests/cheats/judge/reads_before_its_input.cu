// /// opbench
// operator = "copy"
// title    = "looks for a checker's reference before its input"
// launch   = [{ kernel = "reads_before_its_input", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Buffers of one checker often lie next to each other.
//
// refused: out-of-bounds
extern "C" __global__ void reads_before_its_input(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float other = x[i - n - 64];
    out[i] = other == x[i] ? other : x[i];
}
