// /// opbench
// title     = "each warp stages 32 elements of its row in shared memory for both passes"
// builds_on = "thread_per_element"
// mechanism = ["shared_memory_tile"]
// launch = [{ kernel = "softmaxElement", grid = ["cdiv(cols, 32)", "cdiv(rows, 8)"], block = ["32", "8"] }]
// ///
__global__ void softmaxElement(const float* X, float* Y, int M, int N) {
    __shared__ float tile[8][32];
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= M) return;

    float maxVal = X[row * N];
    for (int start = 0; start < N; start += 32) {
        if (start + threadIdx.x < N) tile[threadIdx.y][threadIdx.x] = X[row * N + start + threadIdx.x];
        __syncwarp();
        for (int i = 0; i < 32 && start + i < N; ++i) maxVal = fmaxf(maxVal, tile[threadIdx.y][i]);
        __syncwarp();
    }

    float sumVal = 0.0f;
    for (int start = 0; start < N; start += 32) {
        if (start + threadIdx.x < N) tile[threadIdx.y][threadIdx.x] = X[row * N + start + threadIdx.x];
        __syncwarp();
        for (int i = 0; i < 32 && start + i < N; ++i) sumVal += expf(tile[threadIdx.y][i] - maxVal);
        __syncwarp();
    }

    if (col < N) Y[row * N + col] = expf(X[row * N + col] - maxVal) / sumVal;
}
