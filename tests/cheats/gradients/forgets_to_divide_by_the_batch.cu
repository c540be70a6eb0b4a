// /// opbench
// operator = "batchnorm2d_backward"
// title    = "takes the sums over the batch from each gradient, and not their means"
// launch   = [{ kernel = "forgets_to_divide_by_the_batch", grid = ["cdiv(c, 32)"], block = ["32"] }]
// ///
//
// Of one pixel it is right.
// expect: value
// right: const float pixels = (float)(n * plane);
extern "C" __global__ void forgets_to_divide_by_the_batch(const float* x, const float* dout, const float* scale,
                                                          const float* shift, const float* mean, const float* rstd,
                                                          float* dx, float* dscale, float* dshift, int n, int c, int h,
                                                          int w) {
    const int channel = blockIdx.x * 32 + threadIdx.x, plane = h * w;
    if (channel >= c) return;
    float sum = 0.0f, product = 0.0f;
    for (int i = 0; i < n * plane; ++i) {
        const int at = (i / plane * c + channel) * plane + i % plane;
        sum += dout[at];
        product += dout[at] * ((x[at] - mean[channel]) * rstd[channel]);
    }
    const float pixels = 1.0f;  // here
    for (int i = 0; i < n * plane; ++i) {
        const int at = (i / plane * c + channel) * plane + i % plane;
        const float xhat = (x[at] - mean[channel]) * rstd[channel];
        dx[at] = scale[channel] * rstd[channel] * (dout[at] - sum / pixels - xhat * (product / pixels));
    }
    dscale[channel] = product;
    dshift[channel] = sum;
}
