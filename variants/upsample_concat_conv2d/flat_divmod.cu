// /// opbench
// title    = "one thread per output, flat grid; each filter element reads skip or low directly"
// mechanism = ["flat_index"]
// tune     = { BLOCK = [128, 256] }
// define.NHWC = "layout == 'nhwc'"
// define.BF16 = "dtype == 'bf16'"
// define.BIAS = "epilogue != 'none'"
// define.RELU = "epilogue == 'bias_relu'"
// supports = { layout = ["nchw", "nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32", "bf16"] }
//
// [[launch]]
// kernel = "upsample_concat_conv2d_flat_divmod"
// grid   = ["min(cdiv(n * k * p * q, BLOCK), 2 ** 31 - 1)"]
// block  = ["BLOCK"]
// ///
//
// The first variant, for any layout and size. Neither the enlarged image nor the joined one is stored: for low's
// channels, a tap at (y, x) reads low's pixel (y / 2, x / 2). Neighbouring threads compute neighbouring outputs, so
// stores are coalesced. In nchw, the threads of a warp share filters and read neighbouring pixels; in nhwc they share
// pixels and read filters that are far apart. Limit: every product needs two loads from L1.

#include <cuda_bf16.h>

#if BF16
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// nchw: low [n][c1][h][w], skip [n][c2][2h][2w], weight [k][c1+c2][r][s], bias [k], out [n][k][p][q]
// nhwc: low [n][h][w][c1], skip [n][2h][2w][c2], weight [k][r][s][c1+c2], bias [k], out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(BLOCK)
    upsample_concat_conv2d_flat_divmod(const T* __restrict__ low, const T* __restrict__ skip,
                                       const T* __restrict__ weight,
#if BIAS
                                       const T* __restrict__ bias,
#endif
                                       T* __restrict__ out, int n, int c1, int c2, int h, int w, int k, int r, int s,
                                       int padding) {
    const int p = 2 * h + 2 * padding - r + 1, q = 2 * w + 2 * padding - s + 1, c = c1 + c2;
    const size_t outputs = (size_t)n * k * p * q;
    for (size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x; index < outputs; index += (size_t)gridDim.x * BLOCK) {
#if NHWC
        const int ko = index % k, column = index / k % q, row = index / k / q % p;
        const size_t image = index / k / q / p;
        const size_t filter = (size_t)ko * r * s * c, between_taps = c, between_weights = 1;
        const size_t between_low = 1, between_skip = 1;
#else
        const int column = index % q, row = index / q % p, ko = index / q / p % k;
        const size_t image = index / q / p / k;
        const size_t filter = (size_t)ko * c * r * s, between_taps = 1, between_weights = (size_t)r * s;
        const size_t between_low = (size_t)h * w, between_skip = 4 * between_low;
#endif
        float sum = 0.0f;
        for (int i = 0; i < r; ++i) {
            const int y = row + i - padding;
            if (y < 0 || y >= 2 * h) continue;
            for (int j = 0; j < s; ++j) {
                const int x = column + j - padding;
                if (x < 0 || x >= 2 * w) continue;
                const T* tap = weight + filter + (i * s + j) * between_taps;
#if NHWC
                const T* from_skip = skip + ((image * 2 * h + y) * 2 * w + x) * c2;
                const T* from_low = low + ((image * h + y / 2) * w + x / 2) * c1;
#else
                const T* from_skip = skip + (image * c2 * 2 * h + y) * 2 * w + x;
                const T* from_low = low + (image * c1 * h + y / 2) * w + x / 2;
#endif
                for (int ci = 0; ci < c2; ++ci)
                    sum += (float)from_skip[ci * between_skip] * (float)tap[ci * between_weights];
                tap += c2 * between_weights;
                for (int ci = 0; ci < c1; ++ci)
                    sum += (float)from_low[ci * between_low] * (float)tap[ci * between_weights];
            }
        }
#if BIAS
        sum += (float)bias[ko];
#endif
#if RELU
        sum = fmaxf(sum, 0.0f);
#endif
        out[index] = (T)sum;
    }
}
