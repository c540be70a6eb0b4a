// /// opbench
// title     = "GELU in float"
// builds_on = "gelu_doubles"
// mechanism = ["single_precision"]
// supports = { op = ["gelu"] }
// launch   = [{ kernel = "gelu", grid = ["cdiv(elements, 256)"], block = ["256"], args = ["a", "out", "elements"] }]
// ///
__global__ void gelu(const float* x, float* y, int size) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size) y[i] = 0.5f * x[i] * (1.0f + erff(x[i] / sqrtf(2.0f)));
}
