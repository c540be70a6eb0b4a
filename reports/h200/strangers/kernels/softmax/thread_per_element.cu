// /// opbench
// title  = "each thread finds maximum and sum of its row again, for one element"
// launch = [{ kernel = "softmaxElement", grid = ["cdiv(cols, 32)", "cdiv(rows, 8)"], block = ["32", "8"] }]
// ///
__global__ void softmaxElement(const float* X, float* Y, int M, int N) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= M || col >= N) return;

    float maxVal = X[row * N];
    for (int i = 1; i < N; ++i) maxVal = fmaxf(maxVal, X[row * N + i]);

    float sumVal = 0.0f;
    for (int i = 0; i < N; ++i) sumVal += expf(X[row * N + i] - maxVal);

    Y[row * N + col] = expf(X[row * N + col] - maxVal) / sumVal;
}
