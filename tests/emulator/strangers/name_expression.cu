// /// opbench
// operator = "relu"
// tune = {BLOCK=[128,256]}
// launch = [{ kernel = "ops::relu<float, 4>", grid = ["cdiv(n, BLOCK * 4)"], block = ["BLOCK"] }]
// ///
#include <limits>
#include <type_traits>
#include <algorithm>
#include <cuda_runtime.h>
namespace ops {
namespace {
template <typename T>
__device__ inline T zero() {
    static_assert(std::is_floating_point<T>::value, "float");
    return T(0);
}
}  // namespace
template <typename T, int W>
__global__ void relu(const T* __restrict__ x, T* out, int n) {
    for (int j = 0; j < W; ++j) {
        int i = (blockIdx.x * W + j) * blockDim.x + threadIdx.x;
        if (i < n) out[i] = x[i] > zero<T>() ? x[i] : std::max(zero<T>(), -std::numeric_limits<T>::infinity());
    }
}
}  // namespace ops
