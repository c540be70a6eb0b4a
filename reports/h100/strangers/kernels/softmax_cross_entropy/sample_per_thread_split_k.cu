// /// opbench
// title     = "16 threads of different blocks share the classes of a sample, and join their maxima and sums"
// builds_on = "sample_per_thread"
// mechanism = ["split_k"]
// workspace = { maxima = "16 * rows", sums = "16 * rows", losses = "rows" }
//
// [[launch]]
// kernel = "partial_sums"
// grid   = ["cdiv(rows, 256)", "16"]
// block  = ["256"]
// args   = ["logits", "maxima", "sums", "rows", "cols"]
//
// [[launch]]
// kernel = "cross_entropy"
// grid   = ["cdiv(rows, 256)", "16"]
// block  = ["256"]
// args   = ["logits", "labels", "maxima", "sums", "losses", "dlogits", "rows", "cols", "micro"]
//
// [[launch]]
// kernel = "mean_loss"
// grid   = ["1"]
// block  = ["256"]
// args   = ["losses", "loss", "rows", "micro"]
// ///
#define PARTS 16

__global__ void partial_sums(const float* logits, float* maxima, float* sums, int batch, int classes) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= batch) return;
    const float* z = logits + (size_t)i * classes;
    int part = (classes + PARTS - 1) / PARTS;
    int first = blockIdx.y * part, last = min(classes, first + part);

    float max_logit = -INFINITY;
    for (int j = first; j < last; ++j) max_logit = fmaxf(max_logit, z[j]);
    float sum_exp = 0.0f;
    for (int j = first; j < last; ++j) sum_exp += expf(z[j] - max_logit);
    maxima[blockIdx.y * batch + i] = max_logit;
    sums[blockIdx.y * batch + i] = sum_exp;
}

__global__ void cross_entropy(const float* logits, const int* labels, const float* maxima, const float* sums,
                              float* losses, float* grad, int batch, int classes, int micro) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= batch) return;
    const float* z = logits + (size_t)i * classes;
    int part = (classes + PARTS - 1) / PARTS;
    int first = blockIdx.y * part, last = min(classes, first + part);

    float max_logit = maxima[i];
    for (int p = 1; p < PARTS; ++p) max_logit = fmaxf(max_logit, maxima[p * batch + i]);
    float sum_exp = 0.0f;
    for (int p = 0; p < PARTS; ++p) {
        float sum = sums[p * batch + i];
        if (sum > 0.0f) sum_exp += sum * expf(maxima[p * batch + i] - max_logit);
    }

    float scale = 1.0f / ((float)batch * micro);
    int target = labels[i];
    for (int j = first; j < last; ++j) {
        float p = expf(z[j] - max_logit) / sum_exp;
        grad[(size_t)i * classes + j] = (p - (j == target ? 1.0f : 0.0f)) * scale;
    }
    if (blockIdx.y == 0) losses[i] = logf(sum_exp) - (z[target] - max_logit);
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
