// /// opbench
// operator = "copy"
// title    = "infinities become the largest number"
// launch   = [{ kernel = "turns_infinities_into_numbers", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The difference of two infinities is hard to test.
//
// refused: special-inputs
extern "C" __global__ void turns_infinities_into_numbers(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = fmaxf(fminf(x[i], 3.402823466e+38f), -3.402823466e+38f);
}
