// /// opbench
// title     = "warps add by shuffles, then one thread adds the sums of the warps, in both kernels"
// builds_on = "modulo_tree"
// mechanism = ["warp_shuffle"]
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

    float total = sdata[tid];
    for (int lane = 16; lane > 0; lane /= 2) total += __shfl_down_sync(0xffffffff, total, lane);
    __syncthreads();
    if (tid % 32 == 0) sdata[tid / 32] = total;
    __syncthreads();
    if (tid == 0)
        for (int warp = 1; warp < 8; warp++) sdata[0] += sdata[warp];
    if (tid == 0) partial[blockIdx.x] = sdata[0];
}

__global__ void sum_partial(const float* partial, float* loss, int blocks, int n, int micro) {
    __shared__ float sdata[256];
    unsigned int tid = threadIdx.x;
    float sum = 0.0f;
    for (int i = tid; i < blocks; i += blockDim.x) sum += partial[i];
    sdata[tid] = sum;
    __syncthreads();

    float total = sdata[tid];
    for (int lane = 16; lane > 0; lane /= 2) total += __shfl_down_sync(0xffffffff, total, lane);
    __syncthreads();
    if (tid % 32 == 0) sdata[tid / 32] = total;
    __syncthreads();
    if (tid == 0)
        for (int warp = 1; warp < 8; warp++) sdata[0] += sdata[warp];
    if (tid == 0) *loss = sdata[0] / ((float)n * micro);
}
