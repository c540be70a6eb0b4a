// /// opbench
// operator = "softmax"
// title    = "the first element in place of the maximum"
// launch   = [{ kernel = "takes_the_first_for_the_maximum", grid = ["rows"], block = ["1"] }]
// ///
//
// Enough for normal numbers.
//
// refused: special-inputs
extern "C" __global__ void takes_the_first_for_the_maximum(const float* x, float* out, int rows, int cols) {
    const float* row = x + (size_t)blockIdx.x * cols;
    float* to = out + (size_t)blockIdx.x * cols;
    float sum = 0.0f;
    for (int j = 0; j < cols; ++j) sum += expf(row[j] - row[0]);
    for (int j = 0; j < cols; ++j) to[j] = expf(row[j] - row[0]) / sum;
}
