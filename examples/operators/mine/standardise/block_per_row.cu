// /// opbench
// title     = "one block a row, sums by halves in shared memory"
// builds_on = "thread_per_row"
// mechanism = ["coalesced", "block_reduction"]
// tune      = { BLOCK = [256, 128] }
// launch    = [{ kernel = "standardise_block", grid = ["rows"], block = ["BLOCK"] }]
// ///
// Neighbouring threads read neighbouring addresses, and every row has BLOCK threads. Limit: x is read three times.
__device__ float sum_of_block(float value) {
    __shared__ float part[BLOCK];
    part[threadIdx.x] = value;
    __syncthreads();
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    const float sum = part[0];
    __syncthreads();  // before part is used again
    return sum;
}

extern "C" __global__ void standardise_block(const float* x, float* out, int rows, int cols) {
    x += (size_t)blockIdx.x * cols;
    out += (size_t)blockIdx.x * cols;
    float own = 0.0f;
    for (int i = threadIdx.x; i < cols; i += BLOCK) own += x[i];
    const float mean = sum_of_block(own) / cols;
    own = 0.0f;
    for (int i = threadIdx.x; i < cols; i += BLOCK) own += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.0f / sqrtf(sum_of_block(own) / cols + 1e-5f);
    for (int i = threadIdx.x; i < cols; i += BLOCK) out[i] = (x[i] - mean) * scale;
}
