// /// opbench
// title     = "shared-memory tile of the image with its halo, CHANNELS input channels at a time"
// builds_on = "naive_grid3d"
// mechanism = ["coalesced", "shared_memory_tile", "fewer_barriers"]
// tune      = { TILE_P = [8, 4], TILE_Q = [32], CHANNELS = [4, 1] }
// requires  = [
//     "n * k < 2 ** 31",
//     "4 * CHANNELS * ((TILE_P - 1) * stride + r) * ((TILE_Q - 1) * stride + s) <= 227 * 1024",
// ]
//
// [[launch]]
// kernel = "conv2d_input_tile"
// grid   = ["cdiv(q, TILE_Q)", "min(cdiv(p, TILE_P), 65535)", "min(n * k, 65535)"]
// block  = ["TILE_Q", "TILE_P"]
// shared = "4 * CHANNELS * ((TILE_P - 1) * stride + r) * ((TILE_Q - 1) * stride + s)"
// ///
//
// Each image element is read from global memory once per tile instead of up to r*s times, and the border checks move
// from the inner loop to the copy into shared memory. The gain is small where the L1 cache already served this reuse.
// Limit: still one load from shared memory and one weight load per multiply-add, and every output channel reads the
// image again. A larger CHANNELS means fewer barriers.

// image [n][c][h][w], weight [k][c][r][s], out [n][k][p][q]; tile [CHANNELS][tile_h][tile_w]
extern "C" __global__ void conv2d_input_tile(const float* __restrict__ image, const float* __restrict__ weight,
                                             float* __restrict__ out, int n, int c, int h, int w, int k, int r, int s,
                                             int stride, int padding) {
    extern __shared__ float tile[];
    const int p = (h + 2 * padding - r) / stride + 1;
    const int q = (w + 2 * padding - s) / stride + 1;
    const int tile_h = (TILE_P - 1) * stride + r;
    const int tile_w = (TILE_Q - 1) * stride + s;
    const int xo = blockIdx.x * TILE_Q + threadIdx.x;
    const int tile_x = blockIdx.x * TILE_Q * stride - padding;
    for (unsigned plane = blockIdx.z; plane < (unsigned)n * k; plane += gridDim.z) {
        const size_t ni = plane / k;
        const size_t ko = plane % k;
        for (int tile_p = blockIdx.y * TILE_P; tile_p < p; tile_p += gridDim.y * TILE_P) {
            const int yo = tile_p + threadIdx.y;
            const int tile_y = tile_p * stride - padding;
            float sum = 0.0f;
            for (int c0 = 0; c0 < c; c0 += CHANNELS) {
                const int channels = min(CHANNELS, c - c0);
                for (int row = threadIdx.y; row < channels * tile_h; row += TILE_P) {
                    const int y = tile_y + row % tile_h;
                    const float* line = image + ((ni * c + c0 + row / tile_h) * h + y) * w;
                    for (int column = threadIdx.x; column < tile_w; column += TILE_Q) {
                        const int x = tile_x + column;
                        const bool inside = y >= 0 && y < h && x >= 0 && x < w;
                        tile[row * tile_w + column] = inside ? line[x] : 0.0f;
                    }
                }
                __syncthreads();
                for (int ci = 0; ci < channels; ++ci) {
                    const float* filter = weight + (ko * c + c0 + ci) * r * s;
                    const float* window = tile + (ci * tile_h + threadIdx.y * stride) * tile_w + threadIdx.x * stride;
                    for (int i = 0; i < r; ++i)
                        for (int j = 0; j < s; ++j) sum += window[i * tile_w + j] * filter[i * s + j];
                }
                __syncthreads();  // no thread may overwrite the tile while others still read it
            }
            if (xo < q && yo < p) out[((size_t)plane * p + yo) * q + xo] = sum;
        }
    }
}
