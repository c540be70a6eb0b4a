// /// opbench
// operator = "relu"
// title    = "an index that overflowed"
// launch   = [{ kernel = "writes_far_away", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// expect: out-of-bounds|illegal
extern "C" __global__ void writes_far_away(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) out[1LL << 34] = 1.0f;
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
