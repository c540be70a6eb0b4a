// Each block sums 256 numbers.
__global__ void block_sum(const float* x, float* sums, int n) {
    __shared__ float part[256];
    const int i = blockIdx.x * 256 + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

int main() {
    const int n = 100000;
    float *x, *sums;
    cudaMalloc(&x, n * sizeof(float));
    cudaMalloc(&sums, (n + 255) / 256 * sizeof(float));
    cudaMemset(x, 0, n * sizeof(float));
    block_sum<<<(n + 255) / 256, 256>>>(x, sums, n);
}
