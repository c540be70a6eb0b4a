// /// opbench
// operator = "softmax"
// title    = "a row with a mask gets a constant"
// launch   = [{ kernel = "gives_up_on_masked_rows", grid = ["rows"], block = ["1"] }]
// ///
//
// Normal numbers are finite.
//
// refused: special-inputs
extern "C" __global__ void gives_up_on_masked_rows(const float* x, float* out, int rows, int cols) {
    const float* row = x + (size_t)blockIdx.x * cols;
    float* to = out + (size_t)blockIdx.x * cols;
    float most = row[0], sum = 0.0f;
    bool masked = false;
    for (int j = 0; j < cols; ++j) {
        most = fmaxf(most, row[j]);
        masked |= isinf(row[j]);
    }
    for (int j = 0; j < cols; ++j) sum += expf(row[j] - most);
    for (int j = 0; j < cols; ++j) to[j] = masked ? 1.0f / cols : expf(row[j] - most) / sum;
}
