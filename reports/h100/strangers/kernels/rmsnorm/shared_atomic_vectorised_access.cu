// /// opbench
// title        = "16 bytes per load and store; a thread adds four squares by one atomic"
// builds_on    = "shared_atomic"
// mechanism    = ["vectorised_access"]
// requires     = ["cols % 4 == 0"]
// reproducible = false
// launch       = [{ kernel = "rms_norm", grid = ["rows"], block = ["256"] }]
// ///
__global__ void rms_norm(const float* x, const float4* weight, float* out, float* rstd, int rows, int dim) {
    __shared__ float sum_sq;
    if (threadIdx.x == 0) sum_sq = 0.0f;
    __syncthreads();

    const float4* row = (const float4*)(x + (size_t)blockIdx.x * dim);
    float4* target = (float4*)(out + (size_t)blockIdx.x * dim);
    for (int i = threadIdx.x; i < dim / 4; i += blockDim.x) {
        float4 v = row[i];
        atomicAdd(&sum_sq, v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
    }
    __syncthreads();

    float r = 1.0f / sqrtf(sum_sq / dim + 1e-5f);
    if (threadIdx.x == 0) rstd[blockIdx.x] = r;
    for (int i = threadIdx.x; i < dim / 4; i += blockDim.x) {
        float4 v = row[i], w = weight[i];
        target[i] = make_float4(v.x * r * w.x, v.y * r * w.y, v.z * r * w.z, v.w * r * w.w);
    }
}
