// /// opbench
// operator = "relu"
// title    = "__attribute__((no_sanitize))"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: hide-a-finding
// expect: refused
__attribute__((no_sanitize("thread"))) __device__ void past(float* out, int n) { out[n] = 1.0f; }
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        past(out, n);
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
