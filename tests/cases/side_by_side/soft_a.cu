// /// opbench
// operator = "softmax"
// title    = "one thread per row"
// launch   = [{ kernel = "soft_a", grid = ["cdiv(rows, 128)"], block = [128] }]
// ///
__global__ void soft_a(const float* x, float* out, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float* from = x + (size_t)row * cols;
    float* to = out + (size_t)row * cols;
    float top = from[0];
    for (int i = 1; i < cols; i++) top = fmaxf(top, from[i]);
    float sum = 0.0f;
    for (int i = 0; i < cols; i++) sum += expf(from[i] - top);
    for (int i = 0; i < cols; i++) to[i] = expf(from[i] - top) / sum;
}
