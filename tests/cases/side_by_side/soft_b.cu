// /// opbench
// operator = "softmax"
// title    = "one warp per row"
// launch   = [{ kernel = "soft_b", grid = ["rows"], block = [32] }]
// ///
__global__ void soft_b(const float* x, float* out, int rows, int cols) {
    const float* from = x + (size_t)blockIdx.x * cols;
    float* to = out + (size_t)blockIdx.x * cols;
    float top = -INFINITY;
    for (int i = threadIdx.x; i < cols; i += 32) top = fmaxf(top, from[i]);
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    float sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 32) sum += expf(from[i] - top);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    for (int i = threadIdx.x; i < cols; i += 32) to[i] = expf(from[i] - top) / sum;
}
