// /// opbench
// operator = "relu"
// title = "relu_pack"
// launch = [{ kernel = "relu_pack", grid = ["cdiv(n, 256)"], block = ["256"], args = ["x", "out", "n"] }]
// ///
#include "host_and_device.cuh"
namespace {
constexpr int kThreads = 256;
__global__ void relu_pack(float4 const* __restrict__ x, float* out, int n) {
    const auto* in = reinterpret_cast<const float*>(x);
    for (int i = blockIdx.x * kThreads + threadIdx.x; i < n; i += gridDim.x * kThreads) {
        Pack<float> p{{in[i], 0, 0, 0}};
        out[i] = relu1(p.sum());
    }
}
}  // namespace
int main() {
    Timer t;
    int n = 1 << 20;
    relu_pack<<<ceil_div(n, kThreads), kThreads>>>(nullptr, nullptr, n);
    CHECK(cudaGetLastError());
    thrust::sort(thrust::device, (int*)0, (int*)0);
}
