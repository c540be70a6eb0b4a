// /// opbench
// operator = "relu"
// title    = "a copy"
// launch   = [{ kernel = "gives_its_input_back", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Half of all elements are right.
//
// refused: wrong-result
extern "C" __global__ void gives_its_input_back(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = x[i];
}
