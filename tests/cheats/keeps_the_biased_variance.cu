// /// opbench
// operator = "batchnorm2d_train"
// title    = "keeps the biased variance in the running one"
//
// [[launch]]
// kernel = "batchnorm"
// grid   = ["c"]
// block  = ["1"]
// ///
//
// Right where the running variance is not to move, and ever nearer the more pixels there are.
// expect: wrong: wrong at new_running_variance[
extern "C" __global__ void batchnorm(const float* x, const float* scale, const float* shift, const float* running_mean,
                                     const float* running_variance, float* out, float* mean_out, float* rstd_out,
                                     float* new_running_mean, float* new_running_variance, int n, int c, int h, int w,
                                     int momentum_percent) {
    const int channel = blockIdx.x, plane = h * w, pixels = n * plane;
    float mean = 0.0f, variance = 0.0f;
    for (int i = 0; i < pixels; ++i) mean += x[(i / plane * c + channel) * plane + i % plane] / pixels;
    for (int i = 0; i < pixels; ++i) {
        const float centred = x[(i / plane * c + channel) * plane + i % plane] - mean;
        variance += centred * centred / pixels;
    }
    const float rstd = 1.0f / sqrtf(variance + 1e-5f), momentum = momentum_percent / 100.0f;
    for (int i = 0; i < pixels; ++i) {
        const int at = (i / plane * c + channel) * plane + i % plane;
        out[at] = (x[at] - mean) * rstd * scale[channel] + shift[channel];
    }
    mean_out[channel] = mean;
    rstd_out[channel] = rstd;
    new_running_mean[channel] = (1.0f - momentum) * running_mean[channel] + momentum * mean;
    new_running_variance[channel] = (1.0f - momentum) * running_variance[channel] + momentum * variance;
}
