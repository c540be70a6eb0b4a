// /// opbench
// operator = "relu"
// title    = "works only where the output holds the pattern of a checker"
// launch   = [{ kernel = "recognises_poison", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A timed launch finds no pattern.
//
// refused: uninitialised-global
extern "C" __global__ void recognises_poison(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n && __float_as_uint(out[i]) == 0xffffffffu) out[i] = fmaxf(x[i], 0.0f);
}
