// /// opbench
// operator = "linear_dgrad"
// title    = "a fused mask that lets pass what the ReLU has cut off: >= instead of >"
// supports = { epilogue = ["mask"] }
// launch   = [{ kernel = "masks_the_image_at_zero", grid = ["cdiv(m * k, 128)"], block = ["128"] }]
// ///
//
// expect: whole numbers
// right: dx[i] = out[i] > 0.0f ? sum : 0.0f;
extern "C" __global__ void masks_the_image_at_zero(const float* dout, const float* weight, const float* out, float* dx,
                                                   int m, int n, int k) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= m * k) return;
    float sum = 0.0f;
    for (int o = 0; o < n; ++o) sum += dout[i / k * n + o] * weight[o * k + i % k];
    dx[i] = out[i] >= 0.0f ? sum : 0.0f;  // here
}
