// /// opbench
// title     = "one pass for mean and variance together, of differences from the channel's first element"
// builds_on = "thread_per_channel"
// mechanism = ["fewer_passes"]
//
// [[launch]]
// kernel = "compute_statistics"
// grid   = ["c"]
// block  = ["1"]
// args   = [
//     "x", "running_mean", "running_variance", "mean", "rstd", "new_running_mean", "new_running_variance", "n", "c", "h",
//     "w", "momentum_percent",
// ]
//
// [[launch]]
// kernel = "normalize"
// grid   = ["cdiv(n * c * h * w, 256)"]
// block  = ["256"]
// args   = ["x", "mean", "rstd", "scale", "shift", "out", "n", "c", "h", "w"]
// ///
__global__ void compute_statistics(const float* input, const float* old_mean, const float* old_var, float* mean,
                                   float* rstd, float* new_mean, float* new_var, int N, int C, int H, int W,
                                   int percent) {
    int c = blockIdx.x;
    int HW = H * W;
    float first = input[c * HW], sum = 0.0f, squares = 0.0f;
    for (int n = 0; n < N; ++n) {
        for (int i = 0; i < HW; ++i) {
            float d = input[(n * C + c) * HW + i] - first;
            sum += d;
            squares += d * d;
        }
    }
    int count = N * HW;
    float shift = sum / count;
    float var = fmaxf(squares - sum * shift, 0.0f);
    float momentum = percent / 100.0f;
    mean[c] = first + shift;
    rstd[c] = 1.0f / sqrtf(var / count + 1e-5f);
    new_mean[c] = (1.0f - momentum) * old_mean[c] + momentum * (first + shift);
    new_var[c] = (1.0f - momentum) * old_var[c] + momentum * var / (count > 1 ? count - 1 : 1);
}

__global__ void normalize(const float* input, const float* mean, const float* rstd, const float* gamma,
                          const float* beta, float* output, int N, int C, int H, int W) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N * C * H * W) return;
    int c = i / (H * W) % C;
    output[i] = (input[i] - mean[c]) * rstd[c] * gamma[c] + beta[c];
}
