// /// opbench
// title     = "a block per sample: neighbouring threads read and write neighbouring classes"
// builds_on = "sample_per_thread"
// mechanism = ["coalesced"]
// workspace = { losses = "rows" }
//
// [[launch]]
// kernel = "cross_entropy"
// grid   = ["rows"]
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
    __shared__ float sdata[256];
    int i = blockIdx.x;
    const float* z = logits + (size_t)i * classes;

    float max_logit = -INFINITY;
    for (int j = threadIdx.x; j < classes; j += blockDim.x) max_logit = fmaxf(max_logit, z[j]);
    sdata[threadIdx.x] = max_logit;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) sdata[threadIdx.x] = fmaxf(sdata[threadIdx.x], sdata[threadIdx.x + s]);
        __syncthreads();
    }
    max_logit = sdata[0];
    __syncthreads();

    float sum_exp = 0.0f;
    for (int j = threadIdx.x; j < classes; j += blockDim.x) sum_exp += expf(z[j] - max_logit);
    sdata[threadIdx.x] = sum_exp;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) sdata[threadIdx.x] += sdata[threadIdx.x + s];
        __syncthreads();
    }
    sum_exp = sdata[0];

    float scale = 1.0f / ((float)batch * micro);
    int target = labels[i];
    for (int j = threadIdx.x; j < classes; j += blockDim.x) {
        float p = expf(z[j] - max_logit) / sum_exp;
        grad[(size_t)i * classes + j] = (p - (j == target ? 1.0f : 0.0f)) * scale;
    }
    if (threadIdx.x == 0) losses[i] = logf(sum_exp) - (z[target] - max_logit);
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
