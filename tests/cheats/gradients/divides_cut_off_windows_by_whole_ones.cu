// /// opbench
// operator = "avgpool2d_backward"
// title    = "divides by a whole window's size where the image's border cuts it off"
// supports = { divisor = ["inside"] }
// launch   = [{ kernel = "divides_by_whole_windows", grid = ["cdiv(n * c * h * w, 128)"], block = ["128"] }]
// ///
//
// Without padding it is right.
// expect: value
// right: const int counted = (down - up) * (right - left);
extern "C" __global__ void divides_by_whole_windows(const float* dout, float* dx, int n, int c, int h, int w,
                                                    int window, int stride, int padding) {
    const int index = blockIdx.x * 128 + threadIdx.x;
    if (index >= n * c * h * w) return;
    const int p = (h + 2 * padding - window) / stride + 1, q = (w + 2 * padding - window) / stride + 1;
    const int x = index % w, y = index / w % h;
    float sum = 0.0f;
    for (int a = 0; a < p; ++a) {
        for (int b = 0; b < q; ++b) {
            const int up = max(a * stride - padding, 0), down = min(a * stride - padding + window, h);
            const int left = max(b * stride - padding, 0), right = min(b * stride - padding + window, w);
            if (y < up || y >= down || x < left || x >= right) continue;
            const int counted = window * window;  // here
            sum += dout[(index / (h * w) * p + a) * q + b] / counted;
        }
    }
    dx[index] = sum;
}
