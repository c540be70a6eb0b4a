// /// opbench
// title        = "a block per row, in which every element is added to one sum by an atomic"
// reproducible = false
// launch       = [{ kernel = "rms_norm", grid = ["rows"], block = ["256"] }]
// ///
__global__ void rms_norm(const float* x, const float* weight, float* out, float* rstd, int rows, int dim) {
    __shared__ float sum_sq;
    if (threadIdx.x == 0) sum_sq = 0.0f;
    __syncthreads();

    const float* row = x + (size_t)blockIdx.x * dim;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) atomicAdd(&sum_sq, row[i] * row[i]);
    __syncthreads();

    float r = 1.0f / sqrtf(sum_sq / dim + 1e-5f);
    if (threadIdx.x == 0) rstd[blockIdx.x] = r;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) out[(size_t)blockIdx.x * dim + i] = row[i] * r * weight[i];
}
