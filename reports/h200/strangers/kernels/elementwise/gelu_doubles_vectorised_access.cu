// /// opbench
// title     = "16 bytes per thread"
// builds_on = "gelu_doubles"
// mechanism = ["vectorised_access"]
// supports  = { op = ["gelu"] }
// requires  = ["elements % 4 == 0"]
// launch    = [{ kernel = "gelu", grid = ["cdiv(elements, 1024)"], block = ["256"], args = ["a", "out", "elements // 4"] }]
// ///
__device__ float gelu_of(float x) { return 0.5 * x * (1.0 + erf(x / sqrt(2.0))); }

__global__ void gelu(const float4* x, float4* y, int size) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size) {
        float4 v = x[i];
        y[i] = make_float4(gelu_of(v.x), gelu_of(v.y), gelu_of(v.z), gelu_of(v.w));
    }
}
