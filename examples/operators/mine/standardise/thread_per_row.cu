// /// opbench
// title  = "one thread a row"
// tune   = { BLOCK = [128] }
// launch = [{ kernel = "standardise", grid = ["cdiv(rows, BLOCK)"], block = ["BLOCK"] }]
// ///
//
// The plainest form. Neighbouring threads read addresses a row apart, so that most of each sector is wasted.
extern "C" __global__ void standardise(const float* x, float* out, int rows, int cols) {
    const int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= rows) return;
    float mean = 0.0f, var = 0.0f;
    for (int i = 0; i < cols; ++i) mean += x[row * cols + i];
    mean /= cols;
    for (int i = 0; i < cols; ++i) var += (x[row * cols + i] - mean) * (x[row * cols + i] - mean);
    const float scale = 1.0f / sqrtf(var / cols + 1e-5f);
    for (int i = 0; i < cols; ++i) out[row * cols + i] = (x[row * cols + i] - mean) * scale;
}
