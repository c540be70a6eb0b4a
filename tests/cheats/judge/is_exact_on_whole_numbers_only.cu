// /// opbench
// operator = "relu"
// title    = "fractions are rounded to bf16"
// launch   = [{ kernel = "is_exact_on_whole_numbers_only", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A test on whole numbers sees nothing.
//
// refused: wrong-result
extern "C" __global__ void is_exact_on_whole_numbers_only(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float value = fmaxf(x[i], 0.0f);
    const unsigned bits = __float_as_uint(value);
    out[i] = value == rintf(value) ? value : __uint_as_float((bits + 0x8000u) & 0xffff0000u);
}
