// /// opbench
// operator = "relu"
// title    = "a flood of messages of the compiler"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: flood-the-output
// expect: refused
template <int N> struct Noise { static_assert(N < 0, "noise"); static constexpr int value = Noise<N - 1>::value; };
template <> struct Noise<0> { static constexpr int value = 0; };
__device__ const int noise = Noise<800>::value;
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (noise == 5) return;
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
