// /// opbench
// operator = "sum"
// title    = "0, the expected value of the sum"
// launch   = [{ kernel = "gives_the_expected_value", grid = ["1"], block = ["256"] }]
// ///
//
// The inputs have a mean of 0.
//
// refused: wrong-result
extern "C" __global__ void gives_the_expected_value(const float* x, float* out, int n) {
    if (threadIdx.x == 0) out[0] = 0.0f * x[n - 1];
}
