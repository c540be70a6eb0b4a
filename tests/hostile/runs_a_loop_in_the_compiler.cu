// /// opbench
// operator = "relu"
// title    = "constexpr without end"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: outlive-its-limit
// expect: refused
__device__ constexpr int turn(long n) { int s = 0; for (long k = 0; k < n; ++k) s ^= int(k); return s; }
template <int N> struct Turns { static constexpr int value = turn(30000000) + Turns<N - 1>::value; };
template <> struct Turns<0> { static constexpr int value = 0; };
__device__ const int turned = Turns<500>::value;
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (turned == 5) return;
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
