__global__ void reduce_in_place(float* in, float* out, unsigned int n) {
    float* mine = in + blockIdx.x * blockDim.x;
    if (blockIdx.x * blockDim.x + threadIdx.x >= n) return;
    for (int step = blockDim.x / 2; step > 0; step >>= 1) {
        if (threadIdx.x < step) mine[threadIdx.x] += mine[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = mine[0];
}
void run(float* in, float* out, int n) { reduce_in_place<<<(n + 127) / 128, 128>>>(in, out, n); }
