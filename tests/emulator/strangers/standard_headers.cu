// /// opbench
// operator = "relu"
// launch = [{ kernel = "k", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
#include <ctime>
#include <iostream>
#include <chrono>
#include <memory>
#include <sstream>
#include <thread>
#include <cassert>
#include <cmath>
#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>
#include <tuple>
#include <array>
#include <vector>
#include <string>
#include <mutex>
#include <atomic>
#include <complex>
#include <random>
#include <cfloat>
#include <climits>
using namespace std;
struct Host {
    std::vector<float> data;
    std::string name;
};
template <class T>
struct Op {
    __device__ T operator()(T a, T b) const { return a > b ? a : b; }
};
extern "C" __global__ void k(const float* x, float* out, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    assert(n > 0);
    long long t = clock();
    if (i < n) {
        out[i] = max(Op<float>()(x[i], -FLT_MAX), min(0.0f, (float)INT_MAX));
        if (t == 42) out[i] += abs(x[i]) + fmaxf(x[i], M_PI) + isnan(x[i]);
    }
}
