// /// opbench
// title     = "one output channel per block, whose filter is in shared memory, CHANNELS input channels at a time"
// builds_on = "naive_grid3d"
// mechanism = ["coalesced", "shared_memory_tile"]
// tune      = { BLOCK_X = [32], BLOCK_Y = [8, 4], CHANNELS = [64, 16] }
// requires  = ["n * k < 2 ** 31", "4 * min(c, CHANNELS) * r * s <= 227 * 1024"]
//
// [[launch]]
// kernel = "conv2d_weights_shared"
// grid   = ["cdiv(q, BLOCK_X)", "min(cdiv(p, BLOCK_Y), 65535)", "min(n * k, 65535)"]
// block  = ["BLOCK_X", "BLOCK_Y"]
// shared = "4 * min(c, CHANNELS) * r * s"
// ///
//
// A block computes one output channel, so all its threads need the same weight at the same time. They read it as a
// broadcast from shared memory, with a short and constant latency, instead of from global memory. Limit: the image
// loads, which stay in global memory.

// image [n][c][h][w], weight [k][c][r][s], out [n][k][p][q]; filter [CHANNELS][r][s]
extern "C" __global__ void conv2d_weights_shared(const float* __restrict__ image, const float* __restrict__ weight,
                                                 float* __restrict__ out, int n, int c, int h, int w, int k, int r,
                                                 int s, int stride, int padding) {
    extern __shared__ float filter[];
    const int p = (h + 2 * padding - r) / stride + 1;
    const int q = (w + 2 * padding - s) / stride + 1;
    const int xo = blockIdx.x * BLOCK_X + threadIdx.x;
    const int x0 = xo * stride - padding;
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
    for (unsigned plane = blockIdx.z; plane < (unsigned)n * k; plane += gridDim.z) {
        const size_t ni = plane / k;
        const size_t ko = plane % k;
        for (int tile_p = blockIdx.y * BLOCK_Y; tile_p < p; tile_p += gridDim.y * BLOCK_Y) {
            const int yo = tile_p + threadIdx.y;
            const int y0 = yo * stride - padding;
            const bool active = xo < q && yo < p;
            float sum = 0.0f;
            for (int c0 = 0; c0 < c; c0 += CHANNELS) {
                const int channels = min(CHANNELS, c - c0);
                const float* source = weight + (ko * c + c0) * r * s;
                for (int e = thread; e < channels * r * s; e += BLOCK_X * BLOCK_Y) filter[e] = source[e];
                __syncthreads();
                for (int ci = 0; ci < channels && active; ++ci) {
                    const float* channel = image + (ni * c + c0 + ci) * h * w;
                    for (int i = 0; i < r; ++i) {
                        const int y = y0 + i;
                        if (y < 0 || y >= h) continue;
                        for (int j = 0; j < s; ++j) {
                            const int x = x0 + j;
                            if (x < 0 || x >= w) continue;
                            sum += channel[(size_t)y * w + x] * filter[(ci * r + i) * s + j];
                        }
                    }
                }
                __syncthreads();  // no thread may overwrite the filter while others still read it
            }
            if (active) out[((size_t)plane * p + yo) * q + xo] = sum;
        }
    }
}
