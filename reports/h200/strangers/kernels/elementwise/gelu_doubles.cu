// /// opbench
// title    = "GELU with double literals, which make the arithmetic double"
// supports = { op = ["gelu"] }
// launch   = [{ kernel = "gelu", grid = ["cdiv(elements, 256)"], block = ["256"], args = ["a", "out", "elements"] }]
// ///
__global__ void gelu(const float* x, float* y, int size) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size) y[i] = 0.5 * x[i] * (1.0 + erf(x[i] / sqrt(2.0)));
}
