// /// opbench
// title    = "one thread per output, threadIdx.x along the output channels: stores are uncoalesced"
// tune     = { BLOCK_X = [32], BLOCK_Y = [4, 8] }
//
// [[launch]]
// kernel = "conv2d_naive_channel_x"
// grid   = ["cdiv(k, BLOCK_X)", "min(cdiv(p * q, BLOCK_Y), 65535)", "min(n, 65535)"]
// block  = ["BLOCK_X", "BLOCK_Y"]
// ///
//
// The first variant, uncoalesced on purpose. In nchw, neighbouring output channels are far apart in memory, so a warp's
// store of 128 bytes accesses 32 sectors, and its weight loads are c*r*s floats apart, 32 sectors each. Only the image
// load is a broadcast. Limit: L1 sector throughput.

// image [n][c][h][w], weight [k][c][r][s], out [n][k][p][q]
extern "C" __global__ void conv2d_naive_channel_x(const float* __restrict__ image, const float* __restrict__ weight,
                                                  float* __restrict__ out, int n, int c, int h, int w, int k, int r,
                                                  int s, int stride, int padding) {
    const int p = (h + 2 * padding - r) / stride + 1;
    const int q = (w + 2 * padding - s) / stride + 1;
    const int ko = blockIdx.x * BLOCK_X + threadIdx.x;
    if (ko >= k) return;
    const float* filter = weight + (size_t)ko * c * r * s;
    // Grid dimensions y and z have at most 65535 blocks, so both indices loop.
    for (int ni = blockIdx.z; ni < n; ni += gridDim.z) {
        for (int pixel = blockIdx.y * BLOCK_Y + threadIdx.y; pixel < p * q; pixel += gridDim.y * BLOCK_Y) {
            const int y0 = pixel / q * stride - padding;
            const int x0 = pixel % q * stride - padding;
            float sum = 0.0f;
            for (int ci = 0; ci < c; ++ci) {
                const float* plane = image + ((size_t)ni * c + ci) * h * w;
                for (int i = 0; i < r; ++i) {
                    const int y = y0 + i;
                    if (y < 0 || y >= h) continue;
                    for (int j = 0; j < s; ++j) {
                        const int x = x0 + j;
                        if (x < 0 || x >= w) continue;
                        sum += plane[(size_t)y * w + x] * filter[((size_t)ci * r + i) * s + j];
                    }
                }
            }
            out[((size_t)ni * k + ko) * p * q + pixel] = sum;
        }
    }
}
