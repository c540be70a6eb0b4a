// /// opbench
// title     = "one thread per output, 3-D grid: width on x, height on y, image and channel on z"
// builds_on = "naive_channel_x"
// mechanism = ["coalesced", "no_division"]
// tune      = { BLOCK_X = [32, 16], BLOCK_Y = [8, 4] }
// supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish", "bias_hardsigmoid", "bias_add", "bias_add_relu"]
// supports.dtype    = ["f32", "bf16"]
// requires  = ["n * k < 2 ** 31"]
// define.BF16     = "1 if dtype == 'bf16' else 0"
// define.BIAS     = "0 if epilogue == 'none' else 1"
// define.RELU     = "1 if 'relu' in epilogue else 0"
// define.RESIDUAL = "'add' in epilogue"
// define.HARDSWISH   = "epilogue == 'bias_hardswish'"
// define.HARDSIGMOID = "epilogue == 'bias_hardsigmoid'"
//
// [[launch]]
// kernel = "conv2d_naive_grid3d"
// grid   = ["cdiv(q, BLOCK_X)", "min(cdiv(p, BLOCK_Y), 65535)", "min(n * k, 65535)"]
// block  = ["BLOCK_X", "BLOCK_Y"]
// ///
//
// Neighbouring threads now compute neighbouring pixels of one plane: image loads and stores are contiguous, and all
// threads of a block read the same weight. Limit: every multiply-add still needs two loads, so the load units are the
// limit.

#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// image [n][c][h][w], weight [k][c][r][s], bias [k], residual and out [n][k][p][q]
extern "C" __global__ void conv2d_naive_grid3d(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                                               const T* __restrict__ bias,
#endif
#if RESIDUAL
                                               const T* __restrict__ residual,
#endif
                                               T* __restrict__ out, int n, int c, int h, int w, int k, int r, int s,
                                               int stride, int padding) {
    const int p = (h + 2 * padding - r) / stride + 1;
    const int q = (w + 2 * padding - s) / stride + 1;
    const int xo = blockIdx.x * BLOCK_X + threadIdx.x;
    if (xo >= q) return;
    const int x0 = xo * stride - padding;
    // Grid dimensions y and z have at most 65535 blocks, and n * k is often larger, so both indices loop.
    for (unsigned plane = blockIdx.z; plane < (unsigned)n * k; plane += gridDim.z) {
        const size_t ni = plane / k;
        const size_t ko = plane % k;
        for (int yo = blockIdx.y * BLOCK_Y + threadIdx.y; yo < p; yo += gridDim.y * BLOCK_Y) {
            const int y0 = yo * stride - padding;
            float sum = 0.0f;
            for (int ci = 0; ci < c; ++ci) {
                const T* channel = image + (ni * c + ci) * h * w;
                const T* filter = weight + (ko * c + ci) * r * s;
                for (int i = 0; i < r; ++i) {
                    const int y = y0 + i;
                    if (y < 0 || y >= h) continue;
                    for (int j = 0; j < s; ++j) {
                        const int x = x0 + j;
                        if (x < 0 || x >= w) continue;
                        sum += (float)channel[(size_t)y * w + x] * (float)filter[i * s + j];
                    }
                }
            }
#if BIAS
            sum += (float)bias[ko];
#endif
#if RESIDUAL
            sum += (float)residual[((size_t)plane * p + yo) * q + xo];
#endif
#if RELU
            sum = fmaxf(sum, 0.0f);
#elif HARDSWISH
            sum *= fminf(fmaxf(sum + 3.0f, 0.0f), 6.0f) / 6.0f;
#elif HARDSIGMOID
            sum = fminf(fmaxf(sum + 3.0f, 0.0f), 6.0f) / 6.0f;
#endif
            out[((size_t)plane * p + yo) * q + xo] = T(sum);
        }
    }
}
