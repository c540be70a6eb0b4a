// /// opbench
// operator = "softmax"
// title    = "1/cols everywhere"
// launch   = [{ kernel = "gives_the_mean_of_a_row", grid = ["rows"], block = ["1"] }]
// ///
//
// Close to the result if all elements are small.
//
// refused: wrong-result
extern "C" __global__ void gives_the_mean_of_a_row(const float* x, float* out, int rows, int cols) {
    const float* row = x + (size_t)blockIdx.x * cols;
    float* to = out + (size_t)blockIdx.x * cols;
    for (int j = 0; j < cols; ++j) to[j] = 1.0f / cols;
}
