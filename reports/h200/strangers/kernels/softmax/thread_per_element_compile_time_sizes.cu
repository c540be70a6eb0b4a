// /// opbench
// title     = "the sizes are constants of the compiler"
// builds_on = "thread_per_element"
// mechanism = ["compile_time_sizes"]
// define    = { M = "rows", N = "cols" }
//
// [[launch]]
// kernel = "softmaxElement"
// grid   = ["cdiv(cols, 32)", "cdiv(rows, 8)"]
// block  = ["32", "8"]
// args   = ["x", "out"]
// ///
__global__ void softmaxElement(const float* X, float* Y) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= M || col >= N) return;

    float maxVal = X[row * N];
    for (int i = 1; i < N; ++i) maxVal = fmaxf(maxVal, X[row * N + i]);

    float sumVal = 0.0f;
    for (int i = 0; i < N; ++i) sumVal += expf(X[row * N + i] - maxVal);

    Y[row * N + col] = expf(X[row * N + col] - maxVal) / sumVal;
}
