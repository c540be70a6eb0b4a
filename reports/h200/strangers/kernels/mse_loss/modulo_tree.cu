// /// opbench
// title     = "a tree in shared memory whose active threads are found by a remainder, then one block for the partial sums"
// workspace = { partial = "cdiv(n, 256)" }
//
// [[launch]]
// kernel = "mse"
// grid   = ["cdiv(n, 256)"]
// block  = ["256"]
// args   = ["x", "target", "partial", "dx", "n", "micro"]
//
// [[launch]]
// kernel = "sum_partial"
// grid   = ["1"]
// block  = ["256"]
// args   = ["partial", "loss", "cdiv(n, 256)", "n", "micro"]
// ///
__global__ void mse(const float* pred, const float* target, float* partial, float* grad, int n, int micro) {
    __shared__ float sdata[256];
    unsigned int tid = threadIdx.x;
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;

    sdata[tid] = 0.0f;
    if (i < n) {
        float diff = pred[i] - target[i];
        sdata[tid] = diff * diff;
        grad[i] = 2.0f * diff / ((float)n * micro);
    }
    __syncthreads();

    for (unsigned int s = 1; s < blockDim.x; s *= 2) {
        if (tid % (2 * s) == 0) sdata[tid] += sdata[tid + s];
        __syncthreads();
    }
    if (tid == 0) partial[blockIdx.x] = sdata[0];
}

__global__ void sum_partial(const float* partial, float* loss, int blocks, int n, int micro) {
    __shared__ float sdata[256];
    unsigned int tid = threadIdx.x;
    float sum = 0.0f;
    for (int i = tid; i < blocks; i += blockDim.x) sum += partial[i];
    sdata[tid] = sum;
    __syncthreads();

    for (unsigned int s = 1; s < blockDim.x; s *= 2) {
        if (tid % (2 * s) == 0) sdata[tid] += sdata[tid + s];
        __syncthreads();
    }
    if (tid == 0) *loss = sdata[0] / ((float)n * micro);
}
