#ifndef UTIL_CUH
#define UTIL_CUH
#include <iostream>
#include <vector>
#include <cublas_v2.h>
#include "missing/logger.h"
#define CHECK(x)                                                 \
    do {                                                         \
        if ((x) != cudaSuccess) throw std::runtime_error("bad"); \
    } while (0)
class Timer {
    std::vector<double> t;

public:
    void start() { cudaEventRecord(e); }
    cudaEvent_t e;
};
template <typename T>
struct Pack {
    T v[4];
    __host__ __device__ T sum() const { return v[0] + v[1] + v[2] + v[3]; }
};
__host__ __device__ inline int ceil_div(int a, int b) { return (a + b - 1) / b; }
inline void fill(std::vector<float>& x) {
    for (auto& v : x) v = rand();
}
__device__ __forceinline__ float relu1(float x) { return x > 0.f ? x : 0.f; }
#endif
