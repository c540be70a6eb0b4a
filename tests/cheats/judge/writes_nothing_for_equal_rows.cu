// /// opbench
// operator = "softmax"
// title    = "a row of equal elements is left as it is"
// launch   = [{ kernel = "writes_nothing_for_equal_rows", grid = ["rows"], block = ["1"] }]
// ///
//
// The output holds the result of an earlier launch, or so it hopes.
//
// refused: special-inputs
extern "C" __global__ void writes_nothing_for_equal_rows(const float* x, float* out, int rows, int cols) {
    const float* row = x + (size_t)blockIdx.x * cols;
    float* to = out + (size_t)blockIdx.x * cols;
    float most = row[0], least = row[0], sum = 0.0f;
    for (int j = 0; j < cols; ++j) {
        most = fmaxf(most, row[j]);
        least = fminf(least, row[j]);
    }
    if (most == least && cols > 1) return;
    for (int j = 0; j < cols; ++j) sum += expf(row[j] - most);
    for (int j = 0; j < cols; ++j) to[j] = expf(row[j] - most) / sum;
}
