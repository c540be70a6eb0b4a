// /// opbench
// operator = "relu"
// title    = "its own __tsan_write4"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: hide-a-finding
// expect: refused
extern "C" __device__ void __tsan_write4(void*) {}
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        out[n] = 1.0f;
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
