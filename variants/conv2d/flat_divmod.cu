// /// opbench
// title     = "one thread per output, flat grid: coordinates by division and remainder"
// builds_on = "naive_grid3d"
// mechanism = ["coalesced", "flat_index"]
// tune      = { BLOCK = [128, 256, 512] }
//
// [[launch]]
// kernel = "conv2d_flat_divmod"
// grid   = ["cdiv(n * k * p * q, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// No thread is idle at the right and lower edge of an image whose sizes are not multiples of the block's. This matters
// for small images: 12x12 pixels use 28 % of the threads of blocks of 32x8. The cost is two 64-bit divisions per
// thread, little compared with c*r*s multiply-adds; a warp that covers two rows or two planes loses some coalescing.
// Limit: loads, as in the previous variant.

// image [n][c][h][w], weight [k][c][r][s], out [n][k][p][q]
extern "C" __global__ void conv2d_flat_divmod(const float* __restrict__ image, const float* __restrict__ weight,
                                              float* __restrict__ out, int n, int c, int h, int w, int k, int r, int s,
                                              int stride, int padding) {
    const int p = (h + 2 * padding - r) / stride + 1;
    const int q = (w + 2 * padding - s) / stride + 1;
    const size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (index >= (size_t)n * k * p * q) return;
    const size_t plane = index / ((size_t)p * q);
    const unsigned pixel = (unsigned)(index % ((size_t)p * q));
    const size_t ni = plane / k;
    const size_t ko = plane % k;
    const int y0 = (int)(pixel / q) * stride - padding;
    const int x0 = (int)(pixel % q) * stride - padding;
    float sum = 0.0f;
    for (int ci = 0; ci < c; ++ci) {
        const float* channel = image + (ni * c + ci) * h * w;
        const float* filter = weight + (ko * c + ci) * r * s;
        for (int i = 0; i < r; ++i) {
            const int y = y0 + i;
            if (y < 0 || y >= h) continue;
            for (int j = 0; j < s; ++j) {
                const int x = x0 + j;
                if (x < 0 || x >= w) continue;
                sum += channel[(size_t)y * w + x] * filter[i * s + j];
            }
        }
    }
    out[index] = sum;
}
