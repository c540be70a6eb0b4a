// /// opbench
// title     = "16-byte accesses: LANES neighbouring channels of one pixel per thread"
// builds_on = "filter_constant"
// mechanism = ["coalesced", "compile_time_sizes", "vectorised_access"]
// tune      = { BLOCK = [256, 128, 512] }
// supports.layout   = ["nhwc"]
// supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish"]
// supports.dtype    = ["f32", "bf16"]
// requires  = ["n * c * p * q < 2 ** 31 and n * c * h * w < 2 ** 31", "r * s <= 49"]
//
// [define]
// BF16 = "dtype == 'bf16'"
// BIAS = "epilogue != 'none'"
// RELU = "epilogue == 'bias_relu'"
// HARDSWISH = "epilogue == 'bias_hardswish'"
// LANES = "lanes"
// R = "r"
// S = "s"
// STRIDE = "stride"
// DILATION = "dilation"
//
// [[launch]]
// kernel = "depthwise_nhwc_vectorised"
// grid   = ["cdiv(n * p * q * (c // lanes), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["image", "weight", "bias?", "out", "n", "c // lanes", "h", "w", "padding", "p", "q"]
// ///
//
// A vector of channels needs the index arithmetic and the tests of one channel. Limit: each output still loads r * s
// vectors, nearly all from the L1 cache.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

struct __align__(sizeof(T) * LANES) Pack { T lane[LANES]; };

extern "C" __global__ void __launch_bounds__(BLOCK)
    depthwise_nhwc_vectorised(const Pack* __restrict__ image, const Pack* __restrict__ weight,
#if BIAS
                              const Pack* __restrict__ bias,
#endif
                              Pack* __restrict__ out, int n, int vectors, int h, int w, int padding, int p, int q) {
    // image [n][h][w][vectors]; weight [R][S][vectors]; out [n][p][q][vectors]
    const int index = blockIdx.x * BLOCK + threadIdx.x;
    if (index >= n * p * q * vectors) return;
    const int vector = index % vectors, pixel = index / vectors, number = pixel / (p * q);
    const int y = pixel / q % p * STRIDE - padding, x = pixel % q * STRIDE - padding;
    float sum[LANES] = {};
#pragma unroll
    for (int i = 0; i < R; ++i) {
        const int row = y + i * DILATION;
        if (row < 0 || row >= h) continue;
#pragma unroll
        for (int j = 0; j < S; ++j) {
            const int column = x + j * DILATION;
            if (column < 0 || column >= w) continue;
            const Pack value = image[((number * h + row) * w + column) * vectors + vector];
            const Pack factor = weight[(i * S + j) * vectors + vector];
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) sum[lane] += (float)value.lane[lane] * (float)factor.lane[lane];
        }
    }
    Pack result;
#if BIAS
    const Pack added = bias[vector];
#endif
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
#if BIAS
        sum[lane] += (float)added.lane[lane];
#endif
        if (RELU) sum[lane] = fmaxf(sum[lane], 0.0f);
        if (HARDSWISH) sum[lane] *= fminf(fmaxf(sum[lane] + 3.0f, 0.0f), 6.0f) / 6.0f;
        result.lane[lane] = (T)sum[lane];
    }
    out[index] = result;
}
