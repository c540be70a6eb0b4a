// /// opbench
// title     = "three kernels; blocks of 256 threads compute mean and variance of a channel"
// builds_on = "thread_per_channel"
// mechanism = ["block_reduction"]
//
// [[launch]]
// kernel = "compute_mean"
// grid   = ["c"]
// block  = ["256"]
// args   = ["x", "mean", "n", "c", "h", "w"]
//
// [[launch]]
// kernel = "compute_variance"
// grid   = ["c"]
// block  = ["256"]
// args   = [
//     "x", "mean", "running_mean", "running_variance", "rstd", "new_running_mean", "new_running_variance", "n", "c", "h",
//     "w", "momentum_percent",
// ]
//
// [[launch]]
// kernel = "normalize"
// grid   = ["cdiv(n * c * h * w, 256)"]
// block  = ["256"]
// args   = ["x", "mean", "rstd", "scale", "shift", "out", "n", "c", "h", "w"]
// ///
__device__ float block_sum(float value) {
    __shared__ float sums[256];
    sums[threadIdx.x] = value;
    __syncthreads();
    for (int s = 128; s > 0; s /= 2) {
        if (threadIdx.x < s) sums[threadIdx.x] += sums[threadIdx.x + s];
        __syncthreads();
    }
    return sums[0];
}

__global__ void compute_mean(const float* input, float* mean, int N, int C, int H, int W) {
    int c = blockIdx.x;
    int HW = H * W;
    float sum = 0.0f;
    for (int n = 0; n < N; ++n)
        for (int i = threadIdx.x; i < HW; i += blockDim.x) sum += input[(n * C + c) * HW + i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) mean[c] = sum / (N * HW);
}

__global__ void compute_variance(const float* input, const float* mean, const float* old_mean, const float* old_var,
                                 float* rstd, float* new_mean, float* new_var, int N, int C, int H, int W,
                                 int percent) {
    int c = blockIdx.x;
    int HW = H * W;
    float var = 0.0f;
    for (int n = 0; n < N; ++n) {
        for (int i = threadIdx.x; i < HW; i += blockDim.x) {
            float d = input[(n * C + c) * HW + i] - mean[c];
            var += d * d;
        }
    }
    var = block_sum(var);
    if (threadIdx.x > 0) return;
    float momentum = percent / 100.0f;
    int count = N * HW;
    rstd[c] = 1.0f / sqrtf(var / count + 1e-5f);
    new_mean[c] = (1.0f - momentum) * old_mean[c] + momentum * mean[c];
    new_var[c] = (1.0f - momentum) * old_var[c] + momentum * var / (count > 1 ? count - 1 : 1);
}

__global__ void normalize(const float* input, const float* mean, const float* rstd, const float* gamma,
                          const float* beta, float* output, int N, int C, int H, int W) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N * C * H * W) return;
    int c = i / (H * W) % C;
    output[i] = (input[i] - mean[c]) * rstd[c] * gamma[c] + beta[c];
}
