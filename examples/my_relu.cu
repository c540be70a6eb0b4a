// /// opbench
// operator  = "relu"
// title     = "two elements per thread"
// tune      = { BLOCK = [128, 256] }
// launch    = [{ kernel = "my_relu", grid = ["cdiv(n, 2 * BLOCK)"], block = ["BLOCK"] }]
// ///
//
// Each thread computes two neighbouring elements.
extern "C" __global__ void my_relu(const float* x, float* out, int n) {
    const int i = 2 * (blockIdx.x * BLOCK + threadIdx.x);
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (i + 1 < n) out[i + 1] = fmaxf(x[i + 1], 0.0f);
}
