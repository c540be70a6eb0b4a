// /// opbench
// operator = "relu"
// workspace = { least = "n" }
// launch = [
//   { fill = "least", value = "-inf" },
//   { kernel = "copy", grid = ["cdiv(n, BLOCK)"], block = ["BLOCK"], args = ["x", "least", { u64 = "n" }, 0.5, true, { f64 = 2 }, 3, { u8 = 7 }] },
//   { kernel = "floored<float>", grid = ["cdiv(n, BLOCK)"], block = ["BLOCK"], args = ["least", "out", "n"] },
// ]
// define = { BLOCK = 128 }
// constants = { taps = [0.25, 0.75], shift = 3 }
// ///
__constant__ float taps[2];
namespace own {
__constant__ double few[3];
}
__constant__ int shift;
__global__ void copy(const float* x, float* least, size_t n, float half, bool really, double two, long three,
                     unsigned char seven) {
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n || !really || three != shift || seven != 7 || !isinf(least[i]) || least[i] > 0.0f) return;
    least[i] = x[i] * (half * (float)two * (taps[0] + taps[1]));
}
template <typename T>
__global__ void floored(const T* least, T* out, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = least[i] > T(0) ? least[i] : T(0);
}
