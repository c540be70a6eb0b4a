// /// opbench
// operator = "conv2d_wgrad"
// title    = "adds a gradient to what the step before has left"
// launch   = [{ kernel = "adds_to_the_gradient_before", grid = ["cdiv(k * c * r * s, 128)"], block = ["128"] }]
// ///
//
// Right for one step in memory that somebody has cleared.
// expect: unwritten memory
// right: dweight[index] = sum;
extern "C" __global__ void adds_to_the_gradient_before(const float* image, const float* dout, float* dweight, int n,
                                                       int c, int h, int w, int k, int r, int s, int stride,
                                                       int padding) {
    const int p = (h + 2 * padding - r) / stride + 1, q = (w + 2 * padding - s) / stride + 1;
    const int index = blockIdx.x * 128 + threadIdx.x;
    if (index >= k * c * r * s) return;
    const int j = index % s, i = index / s % r, channel = index / s / r % c, ko = index / s / r / c;
    float sum = 0.0f;
    for (int item = 0; item < n; ++item) {
        for (int a = 0; a < p; ++a) {
            for (int b = 0; b < q; ++b) {
                const int y = a * stride + i - padding, x = b * stride + j - padding;
                if (y < 0 || y >= h || x < 0 || x >= w) continue;
                sum += dout[((item * k + ko) * p + a) * q + b] * image[((item * c + channel) * h + y) * w + x];
            }
        }
    }
    dweight[index] += sum;  // here
}
