// /// opbench
// operator = "relu_backward"
// title    = "lets the gradient through where the ReLU gave 0"
//
// [[launch]]
// kernel = "masked"
// grid   = ["cdiv(n, 256)"]
// block  = ["256"]
// ///
//
// Half of what a ReLU gives is 0.
// expect: wrong: wrong at dx[
extern "C" __global__ void masked(const float* out, const float* dout, float* dx, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) dx[i] = out[i] >= 0.0f ? dout[i] : 0.0f;
}
