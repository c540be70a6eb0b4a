#include <cstdio>
#include <vector>
#include <cuda_runtime.h>
#define CHECK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { printf("%s\n", cudaGetErrorString(e)); exit(1); } } while (0)

__global__ void bias_gelu(const float* x, const float* bias, float* out, float* row_max, int rows, int cols) {
    __shared__ float part[256];
    int row = blockIdx.x;
    float best = -1e30f;
    for (int c = threadIdx.x; c <= cols; c += blockDim.x) {
        float v = x[row * cols + c] + bias[c];
        out[row * cols + c] = 0.5f * v * (1.0f + tanhf(0.7978845f * (v + 0.044715f * v * v * v)));
        best = fmaxf(best, v);
    }
    part[threadIdx.x] = best;
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + s]);
    }
    if (threadIdx.x == 0) row_max[row] = part[0];
}

int main(int argc, char** argv) {
    int rows = 1024, cols = 4096;
    if (argc > 1) rows = atoi(argv[1]);
    size_t bytes = (size_t)rows * cols * sizeof(float);
    std::vector<float> h(rows * cols, 1.0f), hb(cols, 0.5f);
    float *x, *b, *o, *m;
    CHECK(cudaMalloc(&x, bytes));
    CHECK(cudaMalloc(&b, cols * sizeof(float)));
    CHECK(cudaMalloc(&o, bytes));
    CHECK(cudaMalloc(&m, rows * sizeof(float)));
    CHECK(cudaMemcpy(x, h.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(b, hb.data(), cols * sizeof(float), cudaMemcpyHostToDevice));
    bias_gelu<<<rows, 256>>>(x, b, o, m, rows, cols);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(h.data(), o, bytes, cudaMemcpyDeviceToHost));
    printf("%f\n", h[0]);
    return 0;
}
