// /// opbench
// operator = "relu"
// title    = "right if the first element is that of a published seed"
// launch   = [{ kernel = "recognises_the_fixed_seed", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// With the default seed of opbench check this kernel knows what comes.
//
// refused: wrong-result
extern "C" __global__ void recognises_the_fixed_seed(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const unsigned first = __float_as_uint(x[0]) >> 20;
    out[i] = first == 0x3f6 || first == 0xbf6 ? fmaxf(x[i], 0.0f) : x[i];
}
