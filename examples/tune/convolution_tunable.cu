// /// opbench
// operator = "conv2d"
// title    = "convolution of one channel with seven tunables, for opbench tune"
// where    = ["BX * BY <= 1024 and BX * BY >= 32", "PAD == 0 or STAGE == 1"]
// requires = ["c == 1 and k == 1", "stride == 1", "r <= 32 and s <= 32"]
// define   = { R = "r", S = "s" }
// launch   = [{ kernel = "convolve", grid = ["cdiv(q, BX * WX)", "cdiv(p, BY * WY)", "n"], block = ["BX", "BY"], shared = "STAGE * 4 * (BX * WX + s - 1 + PAD) * (BY * WY + r - 1)", args = ["image", "weight", "out", "h", "w", "p", "q", "padding"] }]
//
// [tune]
// BX = { from = 16, to = 256, step = 16, first = 32 }
// BY = { from = 1, to = 32, times = 2, first = 8 }
// WX = { from = 1, to = 8, step = 1 }
// WY = { from = 1, to = 8, step = 1 }
// STAGE = [1, 0]
// PAD = [0, 1]
// ROWS_AT_ONCE = [1, 3]
// ///
//
// A block of BX x BY threads makes a tile of BX*WX by BY*WY outputs, each thread WX by WY of them a block's width apart;
// the tile of the image that they share lies in shared memory or is read through L1. What may be chosen is after the
// public space of Kernel Tuner's 2D convolution (block shape, outputs of a thread, padding of the tile, where the image
// is read from). Shared memory of large tiles is beyond what a block may have: those are never launched.

#define WIDTH (BX * WX + S - 1 + PAD)
#define HEIGHT (BY * WY + R - 1)

// image [n, h, w], filter [R, S], out [n, p, q].
extern "C" __global__ void __launch_bounds__(BX* BY)
    convolve(const float* __restrict__ image, const float* __restrict__ filter, float* __restrict__ out, int h, int w,
             int p, int q, int padding) {
    extern __shared__ float tile[];
    const float* picture = image + (size_t)blockIdx.z * h * w;
    const int x0 = blockIdx.x * BX * WX, y0 = blockIdx.y * BY * WY;
    const auto pixel = [&](int y, int x) {
        const int row = y0 + y - padding, col = x0 + x - padding;
        return row >= 0 && row < h && col >= 0 && col < w ? __ldg(picture + (size_t)row * w + col) : 0.0f;
    };
#if STAGE
    for (int y = threadIdx.y; y < HEIGHT; y += BY)
        for (int x = threadIdx.x; x < BX * WX + S - 1; x += BX) tile[y * WIDTH + x] = pixel(y, x);
    __syncthreads();
#endif
    float sum[WY][WX] = {};
#pragma unroll ROWS_AT_ONCE
    for (int i = 0; i < R; ++i) {
#pragma unroll
        for (int j = 0; j < S; ++j) {
            const float weight = __ldg(filter + i * S + j);
#pragma unroll
            for (int v = 0; v < WY; ++v)
#pragma unroll
                for (int u = 0; u < WX; ++u) {
                    const int y = threadIdx.y + v * BY + i, x = threadIdx.x + u * BX + j;
#if STAGE
                    sum[v][u] = fmaf(tile[y * WIDTH + x], weight, sum[v][u]);
#else
                    sum[v][u] = fmaf(pixel(y, x), weight, sum[v][u]);
#endif
                }
        }
    }
#pragma unroll
    for (int v = 0; v < WY; ++v)
#pragma unroll
        for (int u = 0; u < WX; ++u) {
            const int y = y0 + threadIdx.y + v * BY, x = x0 + threadIdx.x + u * BX;
            if (y < p && x < q) out[((size_t)blockIdx.z * p + y) * q + x] = sum[v][u];
        }
}
