// /// opbench
// title     = "each thread computes one column: neighbouring threads read neighbouring elements of B"
// builds_on = "row_per_thread"
// mechanism = ["coalesced"]
// launch    = [{ kernel = "matMulColumn", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
__global__ void matMulColumn(const float* A, const float* B, float* C, int M, int N, int K) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col < N) {
        for (int row = 0; row < M; row++) {
            float dot = 0;
            for (int k = 0; k < K; k++) {
                dot += A[row * K + k] * B[k * N + col];
            }
            C[row * N + col] = dot;
        }
    }
}
