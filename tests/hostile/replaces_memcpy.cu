// /// opbench
// operator = "relu"
// title    = "a memcpy that does nothing"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: hide-a-finding
// expect: refused
extern "C" __device__ void* memcpy(void* to, const void*, unsigned long) { return to; }
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) memcpy(out, x, 4);
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
