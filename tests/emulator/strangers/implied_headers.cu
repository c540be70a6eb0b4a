// /// opbench
// operator = "relu"
// launch = [{ kernel = "relu_kernel<float>", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
// What it has of the standard library comes with headers that are the host's.
#include <chrono>
#include <iostream>
#include <vector>
template <typename T>
__global__ void relu_kernel(const T* x, T* out, int n) {
    typename std::common_type<T, float>::type least = -std::numeric_limits<float>::infinity();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = std::max(least, std::max(x[i], std::is_same<T, float>::value ? T(0) : T(1)));
}
void report(const std::vector<float>& of) { std::cout << of.size(); }
