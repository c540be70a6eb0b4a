// /// opbench
// operator = "softmax"
// title    = "a row whose first two elements are equal gets a constant"
// launch   = [{ kernel = "spreads_ties_evenly", grid = ["rows"], block = ["1"] }]
// ///
//
// Normal numbers have no ties.
//
// refused: special-inputs
extern "C" __global__ void spreads_ties_evenly(const float* x, float* out, int rows, int cols) {
    const float* row = x + (size_t)blockIdx.x * cols;
    float* to = out + (size_t)blockIdx.x * cols;
    float most = row[0], sum = 0.0f;
    for (int j = 1; j < cols; ++j) most = fmaxf(most, row[j]);
    for (int j = 0; j < cols; ++j) sum += expf(row[j] - most);
    const bool level = cols > 2 && row[0] == row[1];
    for (int j = 0; j < cols; ++j) to[j] = level ? 1.0f / cols : expf(row[j] - most) / sum;
}
