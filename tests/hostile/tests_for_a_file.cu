// /// opbench
// operator = "relu"
// title    = "__has_include of a path"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: test-for-a-file
// expect: refused
#if __has_include("@CANARY@")
#define EXISTS
#endif
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef EXISTS
    if (i < n) out[i] = 4242.0f;
#else
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
#endif
}
