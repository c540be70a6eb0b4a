// expect: without setup = true writes the workspace shift
// /// opbench
// operator  = "linear"
// title     = "a bias that is copied once, and overwritten by every run"
// workspace = { shift = "n" }
//
// [[launch]]
// kernel = "copy_bias"
// grid   = ["cdiv(n, 64)"]
// block  = [64]
// args   = ["bias", "shift", "n"]
// setup  = true
//
// [[launch]]
// kernel = "multiply"
// grid   = ["cdiv(n, 64)"]
// block  = [64]
// args   = ["x", "weight", "shift", "out", "m", "n", "k"]
// ///
//
// Right when both launches run; the second image would find the first one's result in the bias's place.

extern "C" __global__ void copy_bias(const float* bias, float* shift, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) shift[i] = bias[i];
}

extern "C" __global__ void multiply(const float* x, const float* weight, float* shift, float* out, int m, int n,
                                    int k) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= n) return;
    const float bias = shift[col];
    for (int row = 0; row < m; ++row) {
        float sum = bias;
        for (int i = 0; i < k; ++i) sum += x[(size_t)row * k + i] * weight[(size_t)col * k + i];
        out[(size_t)row * n + col] = sum;
        shift[col] = sum;
    }
}
