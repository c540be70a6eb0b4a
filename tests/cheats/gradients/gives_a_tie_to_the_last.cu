// /// opbench
// operator = "maxpool2d_backward"
// title    = "of equal maxima the last takes the gradient, where maxpool2d has found the first"
// launch   = [{ kernel = "gives_a_tie_to_the_last", grid = ["cdiv(n * c * h * w, 128)"], block = ["128"] }]
// ///
//
// No two normals are equal, the zeros that a ReLU leaves are: why the inputs that it is checked on are halves.
// expect: value
// right: if (value > largest) place = y * w + x;
extern "C" __global__ void gives_a_tie_to_the_last(const float* x_in, const float* dout, float* dx, int n, int c, int h,
                                                   int w, int window, int stride, int padding) {
    const int index = blockIdx.x * 128 + threadIdx.x;
    if (index >= n * c * h * w) return;
    const int p = (h + 2 * padding - window) / stride + 1, q = (w + 2 * padding - window) / stride + 1;
    const float* image = x_in + index / (h * w) * h * w;
    float sum = 0.0f;
    for (int a = 0; a < p; ++a) {
        for (int b = 0; b < q; ++b) {
            float largest = __int_as_float(0xff800000);  // -infinity
            int place = -1;
            for (int y = max(a * stride - padding, 0); y < min(a * stride - padding + window, h); ++y) {
                for (int x = max(b * stride - padding, 0); x < min(b * stride - padding + window, w); ++x) {
                    const float value = image[y * w + x];
                    if (value >= largest) place = y * w + x;  // here
                    largest = fmaxf(largest, value);
                }
            }
            if (place == index % (h * w)) sum += dout[index / (h * w) * p * q + a * q + b];
        }
    }
    dx[index] = sum;
}
