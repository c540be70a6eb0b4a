// /// opbench
// operator = "copy"
// title    = "looks for a checker's pattern behind its output"
// launch   = [{ kernel = "reads_behind_its_output", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A guard band tells a checked launch from a timed one.
//
// refused: out-of-bounds
extern "C" __global__ void reads_behind_its_output(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const bool checked = __float_as_uint(out[n]) != 0;
    out[i] = checked ? x[i] : 0.0f;
}
