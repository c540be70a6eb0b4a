// /// opbench
// operator = "batchnorm2d_train"
// title    = "the running variance follows the biased one, by which the batch is normalised"
// launch   = [{ kernel = "keeps_the_biased_variance", grid = ["cdiv(c, 32)"], block = ["32"] }]
// ///
//
// One part in M of a tenth of a number: large batches hide it, and so does one pixel.
// expect: value
// right: const float kept = pixels > 1 ? variance * pixels / (pixels - 1) : variance;
extern "C" __global__ void keeps_the_biased_variance(const float* x, const float* scale, const float* shift,
                                                     const float* running_mean, const float* running_variance,
                                                     float* out, float* mean_out, float* rstd_out,
                                                     float* new_running_mean, float* new_running_variance, int n, int c,
                                                     int h, int w, int momentum_percent) {
    const int channel = blockIdx.x * 32 + threadIdx.x, plane = h * w, pixels = n * plane;
    if (channel >= c) return;
    float sum = 0.0f, squares = 0.0f;
    for (int i = 0; i < pixels; ++i) sum += x[(i / plane * c + channel) * plane + i % plane];
    const float mean = sum / pixels;
    for (int i = 0; i < pixels; ++i) {
        const float centred = x[(i / plane * c + channel) * plane + i % plane] - mean;
        squares += centred * centred;
    }
    const float variance = squares / pixels, rstd = 1.0f / sqrtf(variance + 1e-5f);
    for (int i = 0; i < pixels; ++i) {
        const int at = (i / plane * c + channel) * plane + i % plane;
        out[at] = fmaf(x[at] - mean, rstd * scale[channel], shift[channel]);
    }
    const float momentum = momentum_percent / 100.0f;
    const float kept = variance;  // here
    mean_out[channel] = mean;
    rstd_out[channel] = rstd;
    new_running_mean[channel] = (1.0f - momentum) * running_mean[channel] + momentum * mean;
    new_running_variance[channel] = (1.0f - momentum) * running_variance[channel] + momentum * kept;
}
