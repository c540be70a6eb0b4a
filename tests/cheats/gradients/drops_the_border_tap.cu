// /// opbench
// operator = "conv2d_wgrad"
// title    = "leaves out the filter position that lies on the image's first column"
// launch   = [{ kernel = "drops_the_border_tap", grid = ["cdiv(k * c * r * s, 128)"], block = ["128"] }]
// ///
//
// A guard against the padding that takes a column of the image with it.
// expect: value
// right: if (y < 0 || y >= h || x < 0 || x >= w) continue;
extern "C" __global__ void drops_the_border_tap(const float* image, const float* dout, float* dweight, int n, int c,
                                                int h, int w, int k, int r, int s, int stride, int padding) {
    const int p = (h + 2 * padding - r) / stride + 1, q = (w + 2 * padding - s) / stride + 1;
    const int index = blockIdx.x * 128 + threadIdx.x;
    if (index >= k * c * r * s) return;
    const int j = index % s, i = index / s % r, channel = index / s / r % c, ko = index / s / r / c;
    float sum = 0.0f;
    for (int item = 0; item < n; ++item) {
        for (int a = 0; a < p; ++a) {
            for (int b = 0; b < q; ++b) {
                const int y = a * stride + i - padding, x = b * stride + j - padding;
                if (y < 0 || y >= h || x <= 0 || x >= w) continue;  // here
                sum += dout[((item * k + ko) * p + a) * q + b] * image[((item * c + channel) * h + y) * w + x];
            }
        }
    }
    dweight[index] = sum;
}
