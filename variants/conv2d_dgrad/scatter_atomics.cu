// /// opbench
// title        = "scatter: one thread per element of dout adds to all pixels of its window by float atomics"
// builds_on    = "gather"
// mechanism = ["scatter"]
// supports     = { layout = ["nchw", "nhwc"] }
// define       = { NHWC = "layout == 'nhwc'" }
// tune         = { BLOCK = [256, 128] }
// reproducible = false
//
// [[launch]]
// zero = "dimage"
//
// [[launch]]
// kernel = "conv2d_dgrad_scatter_atomics"
// grid   = ["cdiv(n * k * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["dout", "weight", "dimage", "n", "c", "h", "w", "k", "r", "s", "stride", "padding", "p", "q"]
// ///
//
// The convolution run backwards, as one would write it first: no filter position is tested in vain, whatever the
// stride. But k * r * s threads add to each pixel, and atomics add in the order of arrival, so the bits of the result
// vary from run to run; networks therefore do not use this variant. It shows which costs the gather avoids. Limit:
// atomic additions, one per multiply-add, which L2 performs one at a time for each address.

// nchw: dout [n][k][p][q], weight [k][c][r][s], dimage [n][c][h][w]; nhwc: channels innermost
extern "C" __global__ void __launch_bounds__(BLOCK)
    conv2d_dgrad_scatter_atomics(const float* __restrict__ dout, const float* __restrict__ weight,
                                 float* __restrict__ dimage, int n, int c, int h, int w, int k, int r, int s,
                                 int stride, int padding, int p, int q) {
    const size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (index >= (size_t)n * k * p * q) return;
#if NHWC
    const int output = (int)(index % k), column = (int)(index / k % q), row = (int)(index / k / q % p);
    const size_t item = index / k / q / p;
#else
    const int column = (int)(index % q), row = (int)(index / q % p), output = (int)(index / q / p % k);
    const size_t item = index / q / p / k;
#endif
    const float gradient = dout[index];
    for (int i = 0; i < r; ++i) {
        const int y = row * stride + i - padding;
        if (y < 0 || y >= h) continue;
        for (int j = 0; j < s; ++j) {
            const int x = column * stride + j - padding;
            if (x < 0 || x >= w) continue;
            for (int channel = 0; channel < c; ++channel) {
#if NHWC
                const float factor = weight[(((size_t)output * r + i) * s + j) * c + channel];
                atomicAdd(dimage + ((item * h + y) * w + x) * c + channel, gradient * factor);
#else
                const float factor = weight[(((size_t)output * c + channel) * r + i) * s + j];
                atomicAdd(dimage + ((item * c + channel) * h + y) * w + x, gradient * factor);
#endif
            }
        }
    }
}
