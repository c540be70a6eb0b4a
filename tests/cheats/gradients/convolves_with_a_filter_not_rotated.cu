// /// opbench
// operator = "conv2d_dgrad"
// title    = "a convolution with the filter as it lies, which must be turned by half a circle"
// launch   = [{ kernel = "filter_not_rotated", grid = ["cdiv(n * c * h * w, 128)"], block = ["128"] }]
// ///
//
// Of a symmetric filter it is right.
// expect: value
// right: const float* filter = weight + channel * r * s + (r - 1 - i) * s + s - 1 - j;
extern "C" __global__ void filter_not_rotated(const float* dout, const float* weight, float* dimage, int n, int c,
                                              int h, int w, int k, int r, int s, int stride, int padding) {
    const int p = (h + 2 * padding - r) / stride + 1, q = (w + 2 * padding - s) / stride + 1;
    const int index = blockIdx.x * 128 + threadIdx.x;
    if (index >= n * c * h * w) return;
    const int x = index % w, y = index / w % h, channel = index / w / h % c, image = index / w / h / c;
    float sum = 0.0f;
    for (int i = 0; i < r; ++i) {
        for (int j = 0; j < s; ++j) {
            const int down = y + padding - (r - 1) + i, right = x + padding - (s - 1) + j;
            if (down < 0 || down % stride != 0 || down / stride >= p) continue;
            if (right < 0 || right % stride != 0 || right / stride >= q) continue;
            const float* gradient = dout + (image * k * p + down / stride) * q + right / stride;
            const float* filter = weight + channel * r * s + i * s + j;  // here
            for (int ko = 0; ko < k; ++ko) sum += gradient[ko * p * q] * filter[ko * c * r * s];
        }
    }
    dimage[index] = sum;
}
