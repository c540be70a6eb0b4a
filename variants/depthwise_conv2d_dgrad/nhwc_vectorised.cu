// /// opbench
// title     = "16-byte accesses: LANES neighbouring channels of one pixel per thread"
// builds_on = "filter_constant"
// mechanism = ["coalesced", "compile_time_sizes", "vectorised_access"]
// tune      = { BLOCK = [256, 128, 512] }
// supports  = { layout = ["nhwc"], dtype = ["f32", "bf16"] }
// requires  = ["n * c * p * q < 2 ** 31 and n * c * h * w < 2 ** 31", "r * s <= 49"]
//
// [define]
// BF16 = "dtype == 'bf16'"
// LANES = "lanes"
// R = "r"
// S = "s"
// STRIDE = "stride"
// DILATION = "dilation"
//
// [[launch]]
// kernel = "depthwise_dgrad_nhwc_vectorised"
// grid   = ["cdiv(n * h * w * (c // lanes), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["dout", "weight", "dimage", "n", "c // lanes", "h", "w", "padding", "p", "q"]
// ///
//
// A vector of channels needs the index arithmetic and the tests of one channel. Limit: each pixel still loads up to r *
// s vectors, nearly all from the L1 cache.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

struct __align__(sizeof(T) * LANES) Pack { T lane[LANES]; };

extern "C" __global__ void __launch_bounds__(BLOCK)
    depthwise_dgrad_nhwc_vectorised(const Pack* __restrict__ dout, const Pack* __restrict__ weight,
                                    Pack* __restrict__ dimage, int n, int vectors, int h, int w, int padding, int p,
                                    int q) {
    // dout [n][p][q][vectors]; weight [R][S][vectors]; dimage [n][h][w][vectors]
    const int index = blockIdx.x * BLOCK + threadIdx.x;
    if (index >= n * h * w * vectors) return;
    const int vector = index % vectors, pixel = index / vectors, number = pixel / (h * w);
    const int y = pixel / w % h + padding, x = pixel % w + padding;
    float sum[LANES] = {};
#pragma unroll
    for (int i = 0; i < R; ++i) {
        const int above = y - i * DILATION, row = above / STRIDE;
        if (above < 0 || above % STRIDE != 0 || row >= p) continue;
#pragma unroll
        for (int j = 0; j < S; ++j) {
            const int before = x - j * DILATION, column = before / STRIDE;
            if (before < 0 || before % STRIDE != 0 || column >= q) continue;
            const Pack value = dout[((number * p + row) * q + column) * vectors + vector];
            const Pack factor = weight[(i * S + j) * vectors + vector];
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) sum[lane] += (float)value.lane[lane] * (float)factor.lane[lane];
        }
    }
    Pack result;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) result.lane[lane] = (T)sum[lane];
    dimage[index] = result;
}
