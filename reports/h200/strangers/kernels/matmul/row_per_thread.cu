// /// opbench
// title  = "a textbook's exercise: each thread computes one row of the result"
// launch = [{ kernel = "matMulRow", grid = ["cdiv(m, 256)"], block = ["256"] }]
// ///
__global__ void matMulRow(const float* A, const float* B, float* C, int M, int N, int K) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < M) {
        for (int col = 0; col < N; col++) {
            float dot = 0;
            for (int k = 0; k < K; k++) {
                dot += A[row * K + k] * B[k * N + col];
            }
            C[row * N + col] = dot;
        }
    }
}
