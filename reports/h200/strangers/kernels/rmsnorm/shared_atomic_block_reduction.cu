// /// opbench
// title     = "warps add their elements by shuffles; one lane of each adds to the sum by an atomic"
// builds_on = "shared_atomic"
// mechanism = ["block_reduction"]
// reproducible = false
// launch       = [{ kernel = "rms_norm", grid = ["rows"], block = ["256"] }]
// ///
__global__ void rms_norm(const float* x, const float* weight, float* out, float* rstd, int rows, int dim) {
    __shared__ float sum_sq;
    if (threadIdx.x == 0) sum_sq = 0.0f;
    __syncthreads();

    const float* row = x + (size_t)blockIdx.x * dim;
    float part = 0.0f;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) part += row[i] * row[i];
    for (int lane = 16; lane > 0; lane /= 2) part += __shfl_down_sync(0xffffffff, part, lane);
    if (threadIdx.x % 32 == 0) atomicAdd(&sum_sq, part);
    __syncthreads();

    float r = 1.0f / sqrtf(sum_sq / dim + 1e-5f);
    if (threadIdx.x == 0) rstd[blockIdx.x] = r;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) out[(size_t)blockIdx.x * dim + i] = row[i] * r * weight[i];
}
