// /// opbench
// operator = "batchnorm2d_backward"
// title    = "takes the mean for a constant"
//
// [[launch]]
// kernel = "gradient"
// grid   = ["c"]
// block  = ["1"]
// ///
//
// dshift / M is what x does through the mean: small, where gradients have no mean of their own.
// expect: value
// right: dx[at] = scale[channel] * rstd[channel] * (dout[at] - sum / pixels - xhat * product / pixels);
extern "C" __global__ void gradient(const float* x, const float* dout, const float* scale, const float* shift,
                                    const float* mean, const float* rstd, float* dx, float* dscale, float* dshift,
                                    int n, int c, int h, int w) {
    const int channel = blockIdx.x, plane = h * w, pixels = n * plane;
    float sum = 0.0f, product = 0.0f;
    for (int i = 0; i < pixels; ++i) {
        const int at = (i / plane * c + channel) * plane + i % plane;
        sum += dout[at];
        product += dout[at] * (x[at] - mean[channel]) * rstd[channel];
    }
    for (int i = 0; i < pixels; ++i) {
        const int at = (i / plane * c + channel) * plane + i % plane;
        const float xhat = (x[at] - mean[channel]) * rstd[channel];
        dx[at] = scale[channel] * rstd[channel] * (dout[at] - xhat * product / pixels);  // here
    }
    dscale[channel] = product;
    dshift[channel] = sum;
}
