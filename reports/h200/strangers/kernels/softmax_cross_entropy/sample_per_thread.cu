// /// opbench
// title     = "one thread per sample for loss and gradient, then a kernel for the mean of the losses"
// workspace = { losses = "rows" }
//
// [[launch]]
// kernel = "cross_entropy"
// grid   = ["cdiv(rows, 256)"]
// block  = ["256"]
// args   = ["logits", "labels", "losses", "dlogits", "rows", "cols", "micro"]
//
// [[launch]]
// kernel = "mean_loss"
// grid   = ["1"]
// block  = ["256"]
// args   = ["losses", "loss", "rows", "micro"]
// ///
__global__ void cross_entropy(const float* logits, const int* labels, float* losses, float* grad, int batch,
                              int classes, int micro) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= batch) return;
    const float* z = logits + (size_t)i * classes;

    float max_logit = z[0];
    for (int j = 1; j < classes; ++j) max_logit = fmaxf(max_logit, z[j]);
    float sum_exp = 0.0f;
    for (int j = 0; j < classes; ++j) sum_exp += expf(z[j] - max_logit);

    float scale = 1.0f / ((float)batch * micro);
    int target = labels[i];
    for (int j = 0; j < classes; ++j) {
        float p = expf(z[j] - max_logit) / sum_exp;
        grad[(size_t)i * classes + j] = (p - (j == target ? 1.0f : 0.0f)) * scale;
    }
    losses[i] = logf(sum_exp) - (z[target] - max_logit);
}

__global__ void mean_loss(const float* losses, float* loss, int batch, int micro) {
    __shared__ float sdata[256];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < batch; i += blockDim.x) sum += losses[i];
    sdata[threadIdx.x] = sum;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) sdata[threadIdx.x] += sdata[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0) *loss = sdata[0] / ((float)batch * micro);
}
