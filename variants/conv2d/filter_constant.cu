// /// opbench
// title     = "filter size and stride as compile-time constants: the filter loops are unrolled"
// builds_on = "naive_grid3d"
// mechanism = ["coalesced", "compile_time_sizes"]
// tune      = { BLOCK_X = [32], BLOCK_Y = [8, 4] }
// define    = { R = "r", S = "s", STRIDE = "stride" }
// requires  = ["n * k < 2 ** 31", "r * s <= 256"]
//
// [[launch]]
// kernel = "conv2d_filter_constant"
// grid   = ["cdiv(q, BLOCK_X)", "min(cdiv(p, BLOCK_Y), 65535)", "min(n * k, 65535)"]
// block  = ["BLOCK_X", "BLOCK_Y"]
// args   = ["image", "weight", "out", "n", "c", "h", "w", "k", "padding"]
// ///
//
// The compiler unrolls filter loops of constant length: no counters, no index arithmetic (offsets are immediates), and
// all r*s loads of a channel can be in flight at once. Border checks become one flag per filter row and column. Limit:
// still two loads per multiply-add.

// image [n][c][h][w], weight [k][c][R][S], out [n][k][p][q]
extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y)
    conv2d_filter_constant(const float* __restrict__ image, const float* __restrict__ weight, float* __restrict__ out,
                           int n, int c, int h, int w, int k, int padding) {
    const int p = (h + 2 * padding - R) / STRIDE + 1;
    const int q = (w + 2 * padding - S) / STRIDE + 1;
    const int xo = blockIdx.x * BLOCK_X + threadIdx.x;
    if (xo >= q) return;
    const int x0 = xo * STRIDE - padding;
    for (unsigned plane = blockIdx.z; plane < (unsigned)n * k; plane += gridDim.z) {
        const size_t ni = plane / k;
        const size_t ko = plane % k;
        for (int yo = blockIdx.y * BLOCK_Y + threadIdx.y; yo < p; yo += gridDim.y * BLOCK_Y) {
            const int y0 = yo * STRIDE - padding;
            // may be outside of the image; only checked elements are read
            const long long corner = (long long)y0 * w + x0;
            const float* channel = image + ni * c * h * w;
            const float* filter = weight + ko * c * R * S;
            float sum = 0.0f;
            for (int ci = 0; ci < c; ++ci) {
#pragma unroll
                for (int i = 0; i < R; ++i) {
                    const bool row = (unsigned)(y0 + i) < (unsigned)h;
#pragma unroll
                    for (int j = 0; j < S; ++j) {
                        const bool inside = row && (unsigned)(x0 + j) < (unsigned)w;
                        const float pixel = inside ? channel[corner + (long long)i * w + j] : 0.0f;
                        sum += pixel * filter[i * S + j];
                    }
                }
                channel += (size_t)h * w;
                filter += R * S;
            }
            out[((size_t)plane * p + yo) * q + xo] = sum;
        }
    }
}
