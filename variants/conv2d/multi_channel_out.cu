// /// opbench
// title     = "OUT output channels of a pixel per thread: each image load is used for OUT multiply-adds"
// builds_on = "filter_constant"
// mechanism = ["coalesced", "shared_memory_tile", "register_tile", "compile_time_sizes"]
// tune      = { OUT = [8, 4, 2], BLOCK_X = [32], BLOCK_Y = [8], CHANNELS = [4] }
// define    = { R = "r", S = "s", STRIDE = "stride" }
// requires  = ["n * k < 2 ** 31", "r * s <= 256"]
//
// [[launch]]
// kernel = "conv2d_multi_channel_out"
// grid   = ["cdiv(q, BLOCK_X)", "min(cdiv(p, BLOCK_Y), 65535)", "min(n * cdiv(k, OUT), 65535)"]
// block  = ["BLOCK_X", "BLOCK_Y"]
// shared = "4 * CHANNELS * r * s * OUT"
// args   = ["image", "weight", "out", "n", "c", "h", "w", "k", "padding"]
// ///
//
// The image is read k/OUT times instead of k times, and OUT independent sums hide the latency of the multiply-add. The
// weights of the OUT channels are contiguous in shared memory, so one 16-byte broadcast loads four of them. At OUT=8
// three loads serve eight multiply-adds; in the implicit matrix product four loads serve 64.

struct alignas(OUT >= 4 ? 16 : 8) Channels { float value[OUT]; };

// image [n][c][h][w], weight [k][c][R][S], out [n][k][p][q]; filters [CHANNELS][R][S][OUT]
extern "C" __global__ void conv2d_multi_channel_out(const float* __restrict__ image, const float* __restrict__ weight,
                                                    float* __restrict__ out, int n, int c, int h, int w, int k,
                                                    int padding) {
    extern __shared__ __align__(16) float filters[];
    const int p = (h + 2 * padding - R) / STRIDE + 1;
    const int q = (w + 2 * padding - S) / STRIDE + 1;
    const int groups = (k + OUT - 1) / OUT;
    const int xo = blockIdx.x * BLOCK_X + threadIdx.x;
    const int x0 = xo * STRIDE - padding;
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
    for (unsigned group = blockIdx.z; group < (unsigned)n * groups; group += gridDim.z) {
        const size_t ni = group / groups;
        const int k0 = (int)(group % groups) * OUT;
        for (int tile_p = blockIdx.y * BLOCK_Y; tile_p < p; tile_p += gridDim.y * BLOCK_Y) {
            const int yo = tile_p + threadIdx.y;
            const int y0 = yo * STRIDE - padding;
            const bool active = xo < q && yo < p;
            const long long corner = (long long)y0 * w + x0;  // may lie outside; only checked elements are read
            float sum[OUT] = {};
            for (int c0 = 0; c0 < c; c0 += CHANNELS) {
                const int channels = min(CHANNELS, c - c0);
                for (int e = thread; e < channels * R * S * OUT; e += BLOCK_X * BLOCK_Y) {
                    const int ko = k0 + e % OUT;
                    filters[e] = ko < k ? weight[((size_t)ko * c + c0) * R * S + e / OUT] : 0.0f;
                }
                __syncthreads();
                for (int ci = 0; ci < channels && active; ++ci) {
                    const float* channel = image + (ni * c + c0 + ci) * h * w;
#pragma unroll
                    for (int i = 0; i < R; ++i) {
                        const bool row = (unsigned)(y0 + i) < (unsigned)h;
#pragma unroll
                        for (int j = 0; j < S; ++j) {
                            const bool inside = row && (unsigned)(x0 + j) < (unsigned)w;
                            const float pixel = inside ? channel[corner + (long long)i * w + j] : 0.0f;
                            const Channels f = reinterpret_cast<const Channels*>(filters)[(ci * R + i) * S + j];
#pragma unroll
                            for (int o = 0; o < OUT; ++o) sum[o] += pixel * f.value[o];
                        }
                    }
                }
                __syncthreads();  // no thread may overwrite the filters while others still read them
            }
#pragma unroll
            for (int o = 0; o < OUT; ++o)
                if (active && k0 + o < k) out[((ni * k + k0 + o) * p + yo) * q + xo] = sum[o];
        }
    }
}
