// /// opbench
// operator = "relu_backward"
// title    = "a mask that lets pass what the ReLU has cut off: >= instead of >"
// launch   = [{ kernel = "passes_gradients_at_zero", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Normals are never 0; half of what a ReLU gives is, and half of what it is checked on.
// expect: value
// right: if (i < n) dx[i] = out[i] > 0.0f ? dout[i] : 0.0f;
extern "C" __global__ void passes_gradients_at_zero(const float* out, const float* dout, float* dx, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) dx[i] = out[i] >= 0.0f ? dout[i] : 0.0f;  // here
}
