// /// opbench
// operator = "relu"
// launch = [{ kernel = "relu_kernel", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
#include <cuda.h>
#include <iostream>
#include <chrono>
#include <vector>
#include <time.h>
#include <memory>
#include <cassert>
#include "helper_cuda.h"
#define CHECK(call)                             \
    do {                                        \
        cudaError_t e = call;                   \
        if (e != cudaSuccess) {                 \
            std::cerr << cudaGetErrorString(e); \
            exit(1);                            \
        }                                       \
    } while (0)
using namespace std;
// it calls this_grid() and asm volatile("nonsense;") nowhere
const int BLOCK = 256;
__global__ void relu_kernel(const float* __restrict__ x, float* out, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) out[i] = max(x[i], 0.f);
}
__global__ void other(float* x) {
    unknown_thing(x);
    asm volatile("frobnicate.f32 %0;" : "=f"(x[0]));
}
void host_reference(const vector<float>& x) {
    for (auto v : x) cout << v;
}
int main() {
    float* d;
    cudaMalloc(&d, 100);
    CHECK(cudaMemset(d, 0, 100));
    cudaStream_t s;
    cudaStreamCreate(&s);
    relu_kernel<<<dim3((100 + BLOCK - 1) / BLOCK), BLOCK, 0, s>>>(d, d, 25);
    CHECK(cudaDeviceSynchronize());
}
