// /// opbench
// operator = "relu"
// title    = "templates without end"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: outlive-its-limit
// expect: refused
template <int N> struct Deep { static constexpr int value = Deep<N + 1>::value + Deep<N + 2>::value; };
__device__ const int depth = Deep<0>::value;
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (depth == 5) return;
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
