// /// opbench
// operator = "conv2d"
// title    = "stages each channel's filter, one barrier per channel"
// requires = ["layout == 'nchw'", "r * s <= 128", "n * k < 65536"]
// launch   = [{ kernel = "overwrites_the_filter_while_it_is_used", grid = ["cdiv(p * q, 64)", "n * k"], block = ["64"] }]
// ///
//
// The first warp loads the next channel's filter while the others still use this one; one channel is right.
// expect: overwrites_the_filter_while_it_is_used.cu:19: shared-race: write of 4 bytes
extern "C" __global__ void overwrites_the_filter_while_it_is_used(
    const float* image, const float* weight, float* out, int n, int c, int h, int w, int k, int r, int s, int stride,
    int padding) {
    __shared__ float filter[128];
    const int p = (h + 2 * padding - r) / stride + 1, q = (w + 2 * padding - s) / stride + 1;
    const int at = blockIdx.x * 64 + threadIdx.x, top = at / q * stride - padding, left = at % q * stride - padding;
    const int in = blockIdx.y / k, of = blockIdx.y % k;
    float sum = 0.0f;
    for (int channel = 0; channel < c; ++channel) {
        for (int i = threadIdx.x; i < r * s; i += 64) filter[i] = weight[(of * c + channel) * r * s + i];
        __syncthreads();
        for (int i = 0; i < r * s; ++i) {
            const int y = top + i / s, x = left + i % s;
            if (y >= 0 && y < h && x >= 0 && x < w) sum += filter[i] * image[((in * c + channel) * h + y) * w + x];
        }
    }
    if (at < p * q) out[blockIdx.y * p * q + at] = sum;
}
