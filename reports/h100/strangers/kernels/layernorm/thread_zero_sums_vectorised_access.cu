// /// opbench
// title     = "16 bytes per load and store"
// builds_on = "thread_zero_sums"
// mechanism = ["vectorised_access"]
// requires  = ["cols % 4 == 0"]
// launch    = [{ kernel = "layernorm_kernel", grid = ["rows"], block = ["256"] }]
// ///
__global__ void layernorm_kernel(const float* x, const float4* gamma, const float4* beta, float* y, float* mean_out,
                                 float* rstd_out, int rows, int cols) {
    __shared__ float mean, rstd;
    const float4* row = (const float4*)(x + (size_t)blockIdx.x * cols);
    float4* target = (float4*)(y + (size_t)blockIdx.x * cols);

    if (threadIdx.x == 0) {
        float sum = 0.0f;
        for (int i = 0; i < cols / 4; i++) {
            float4 v = row[i];
            sum += v.x + v.y + v.z + v.w;
        }
        mean = sum / cols;
        float var = 0.0f;
        for (int i = 0; i < cols / 4; i++) {
            float4 v = row[i];
            var += (v.x - mean) * (v.x - mean) + (v.y - mean) * (v.y - mean) + (v.z - mean) * (v.z - mean) +
                   (v.w - mean) * (v.w - mean);
        }
        rstd = 1.0f / sqrtf(var / cols + 1e-5f);
        mean_out[blockIdx.x] = mean;
        rstd_out[blockIdx.x] = rstd;
    }
    __syncthreads();

    for (int i = threadIdx.x; i < cols / 4; i += blockDim.x) {
        float4 v = row[i], g = gamma[i], b = beta[i];
        target[i] = make_float4((v.x - mean) * rstd * g.x + b.x, (v.y - mean) * rstd * g.y + b.y,
                                (v.z - mean) * rstd * g.z + b.z, (v.w - mean) * rstd * g.w + b.w);
    }
}
