// /// opbench
// title     = "thread 0 computes mean and variance in one pass, of differences from the row's first element"
// builds_on = "thread_zero_sums"
// mechanism = ["fewer_passes"]
// launch    = [{ kernel = "layernorm_kernel", grid = ["rows"], block = ["256"] }]
// ///
__global__ void layernorm_kernel(const float* x, const float* gamma, const float* beta, float* y, float* mean_out,
                                 float* rstd_out, int rows, int cols) {
    __shared__ float mean, rstd;
    const float* row = x + (size_t)blockIdx.x * cols;

    if (threadIdx.x == 0) {
        float sum = 0.0f, squares = 0.0f, first = row[0];
        for (int i = 0; i < cols; i++) {
            float d = row[i] - first;
            sum += d;
            squares += d * d;
        }
        float shift = sum / cols;
        mean = first + shift;
        rstd = 1.0f / sqrtf(fmaxf(squares / cols - shift * shift, 0.0f) + 1e-5f);
        mean_out[blockIdx.x] = mean;
        rstd_out[blockIdx.x] = rstd;
    }
    __syncthreads();

    for (int i = threadIdx.x; i < cols; i += blockDim.x) {
        y[(size_t)blockIdx.x * cols + i] = (row[i] - mean) * rstd * gamma[i] + beta[i];
    }
}
