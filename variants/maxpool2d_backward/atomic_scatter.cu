// /// opbench
// title        = "one thread per window adds its gradient to the pixel of its maximum, with an atomic"
// builds_on    = "gather"
// mechanism = ["scatter"]
// reproducible = false
// tune         = { BLOCK = [256, 128, 512] }
// define       = { NHWC = "layout == 'nhwc'" }
// supports     = { layout = ["nchw", "nhwc"] }
// requires     = ["n * c * p * q <= 4294966272"]
//
// [[launch]]
// zero = "dx"
//
// [[launch]]
// kernel = "maxpool2d_backward_atomic_scatter"
// grid   = ["cdiv(n * c * p * q, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// Each window is searched once; the previous variant searches it for each of its pixels. For teaching: dx is written
// twice, once with zeros and once by atomics in the L2 cache. If windows overlap, sums are added in the order of
// arrival, so their bits vary from run to run, and networks do not use this variant. PyTorch's own kernels for
// overlapping windows in channels_last do the same.
extern "C" __global__ void maxpool2d_backward_atomic_scatter(const float* __restrict__ x,
                                                             const float* __restrict__ dout, float* __restrict__ dx,
                                                             int n, int c, int h, int w, int window, int stride,
                                                             int padding) {
    // x, dx [n][c][h][w] or [n][h][w][c]; dout [n][c][p][q] or [n][p][q][c], fewer than 2^32 elements
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    const unsigned p = (unsigned)((h + 2 * padding - window) / stride + 1);
    const unsigned q = (unsigned)((w + 2 * padding - window) / stride + 1);
    if (i >= (unsigned)n * (unsigned)c * p * q) return;
#if NHWC
    const unsigned row = i / (unsigned)c / q % p, column = i / (unsigned)c % q;
    const size_t base = (size_t)(i / (unsigned)c / q / p) * h * w * c + i % (unsigned)c;
    const size_t step = c;  // from one pixel to the next
#else
    const unsigned row = i / q % p, column = i % q;
    const size_t base = (size_t)(i / q / p) * h * w;
    const size_t step = 1;
#endif
    const int top = (int)row * stride - padding, left = (int)column * stride - padding;
    float largest = __int_as_float(0xff800000);  // -infinity
    int place = -1;
    for (int y = max(top, 0); y < min(top + window, h); ++y) {
        for (int z = max(left, 0); z < min(left + window, w); ++z) {
            const float value = x[base + (size_t)(y * w + z) * step];
            if (value > largest) {
                largest = value;
                place = y * w + z;
            }
        }
    }
    if (place >= 0) atomicAdd(dx + base + (size_t)place * step, dout[i]);
}
