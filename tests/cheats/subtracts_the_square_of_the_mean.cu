// /// opbench
// operator = "batchnorm2d_train"
// title    = "takes the variance as E[x^2] - E[x]^2"
//
// [[launch]]
// kernel = "batchnorm"
// grid   = ["c"]
// block  = ["32"]
// ///
//
// Right where the mean is near 0; where it is 100 deviations, four of seven digits cancel.
// expect: wrong-result: 
__device__ float warp_sum(float v) {
    for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(0xffffffffu, v, distance);
    return v;
}
extern "C" __global__ void batchnorm(const float* x, const float* scale, const float* shift, const float* running_mean,
                                     const float* running_variance, float* out, float* mean_out, float* rstd_out,
                                     float* new_running_mean, float* new_running_variance, int n, int c, int h, int w,
                                     int momentum_percent) {
    const int channel = blockIdx.x, plane = h * w, pixels = n * plane;
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < pixels; i += 32) {
        const float value = x[(i / plane * c + channel) * plane + i % plane];
        sum += value;
        squares += value * value;
    }
    const float mean = warp_sum(sum) / pixels;
    const float variance = fmaxf(warp_sum(squares) / pixels - mean * mean, 0.0f);
    const float rstd = 1.0f / sqrtf(variance + 1e-5f);
    for (int i = threadIdx.x; i < pixels; i += 32) {
        const int at = (i / plane * c + channel) * plane + i % plane;
        out[at] = (x[at] - mean) * rstd * scale[channel] + shift[channel];
    }
    if (threadIdx.x != 0) return;
    const float momentum = momentum_percent / 100.0f;
    mean_out[channel] = mean;
    rstd_out[channel] = rstd;
    new_running_mean[channel] = (1.0f - momentum) * running_mean[channel] + momentum * mean;
    new_running_variance[channel] = (1.0f - momentum) * running_variance[channel] +
                                    momentum * variance * (pixels > 1 ? pixels / (pixels - 1.0f) : 1.0f);
}
