// /// opbench
// operator = "relu"
// title    = "right at the operator's examples only"
// launch   = [{ kernel = "knows_the_examples", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A size that is none of the published examples gets the input back.
//
// refused: wrong-result
extern "C" __global__ void knows_the_examples(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const bool known = n == 1 || n == 2 || n == 3 || n == 31 || n == 127 || n == 1021 || n == 4096 || n == 4099 ||
                       n == 20011 || n == 65537;
    out[i] = known ? fmaxf(x[i], 0.0f) : x[i];
}
