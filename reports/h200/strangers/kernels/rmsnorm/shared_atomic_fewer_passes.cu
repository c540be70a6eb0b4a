// /// opbench
// title        = "the row stays in shared memory, so that it is read once"
// builds_on    = "shared_atomic"
// mechanism    = ["fewer_passes"]
// reproducible = false
// launch       = [{ kernel = "rms_norm", grid = ["rows"], block = ["256"], shared = "4 * cols" }]
// ///
__global__ void rms_norm(const float* x, const float* weight, float* out, float* rstd, int rows, int dim) {
    extern __shared__ float kept[];
    __shared__ float sum_sq;
    if (threadIdx.x == 0) sum_sq = 0.0f;
    __syncthreads();

    const float* row = x + (size_t)blockIdx.x * dim;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        float v = row[i];
        kept[i] = v;
        atomicAdd(&sum_sq, v * v);
    }
    __syncthreads();

    float r = 1.0f / sqrtf(sum_sq / dim + 1e-5f);
    if (threadIdx.x == 0) rstd[blockIdx.x] = r;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) out[(size_t)blockIdx.x * dim + i] = kept[i] * r * weight[i];
}
