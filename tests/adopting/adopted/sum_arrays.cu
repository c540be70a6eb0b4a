__global__ void sumArrays(float* A, float* B, float* C, const int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) C[i] = A[i] + B[i];
}
void run(float* a, float* b, float* c, int n) { sumArrays<<<(n + 511) / 512, 512>>>(a, b, c, n); }
