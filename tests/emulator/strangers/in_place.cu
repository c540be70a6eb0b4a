// /// opbench
// operator = "relu"
// in_place = { out = "x" }
// launch = [{ kernel = "relu_", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
__global__ void relu_(float* data, size_t n) {
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n && data[i] < 0.0f) data[i] = 0.0f;
}
