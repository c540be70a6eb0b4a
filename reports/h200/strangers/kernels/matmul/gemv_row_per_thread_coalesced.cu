// /// opbench
// title     = "a block per row: neighbouring threads read neighbouring elements of the row"
// builds_on = "gemv_row_per_thread"
// mechanism = ["coalesced"]
// requires  = ["n == 1"]
// launch    = [{ kernel = "matVec", grid = ["m"], block = ["256"], args = ["a", "b", "out", "m", "k"] }]
// ///
__global__ void matVec(const float* mat, const float* vec, float* out, int rows, int cols) {
    __shared__ float sums[256];
    int row = blockIdx.x;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += mat[(size_t)row * cols + i] * vec[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) sums[threadIdx.x] += sums[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[row] = sums[0];
}
