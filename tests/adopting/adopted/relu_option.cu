#include <cstdlib>
__global__ void relu(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
int main(int argc, char** argv) {
    int n = 1 << 24, threads = 512;
    if (argc > 1) threads = atoi(argv[1]);
    float *x, *out;
    dim3 block(threads, 1), grid((n + block.x - 1) / block.x, 1);
    relu<<<grid, block>>>(x, out, n);
}
