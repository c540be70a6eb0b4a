// /// opbench
// title     = "PIXELS neighbouring outputs of a row per thread: each image vector is loaded once for all of them"
// builds_on = "nhwc_vectorised"
// mechanism = ["coalesced", "compile_time_sizes", "vectorised_access", "register_tile"]
// tune      = { PIXELS = [4, 8, 2, 7], BLOCK = [256, 128] }
// supports.layout   = ["nhwc"]
// supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish"]
// supports.dtype    = ["f32", "bf16"]
// requires  = [
//     "n * c * p * q < 2 ** 31 and n * c * h * w < 2 ** 31", "r * s <= 49",
//     "(PIXELS - 1) * stride + (s - 1) * dilation + 1 <= 24",
// ]
//
// [define]
// BF16 = "dtype == 'bf16'"
// BIAS = "epilogue != 'none'"
// EPILOGUE = "epilogue"
// LANES = "lanes"
// R = "r"
// S = "s"
// STRIDE = "stride"
// DILATION = "dilation"
// SPAN = "(PIXELS - 1) * stride + (s - 1) * dilation + 1"
//
// [[launch]]
// kernel = "depthwise_nhwc_columns"
// grid   = ["cdiv(n * p * cdiv(q, PIXELS) * (c // lanes), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["image", "weight", "bias?", "out", "n", "c // lanes", "h", "w", "padding", "p", "q"]
// ///
//
// The windows of neighbouring outputs overlap: at stride 1, PIXELS + s - 1 vectors of a row serve PIXELS outputs, and a
// vector of the filter is loaded once for all of them. The loads of a row are in flight together. Limit: HBM; for large
// filters, each row of outputs reads r rows again from the L1 or L2 cache.

#include <opbench/activations.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Packed<T, LANES> Pack;

extern "C" __global__ void __launch_bounds__(BLOCK)
    depthwise_nhwc_columns(const Pack* __restrict__ image, const Pack* __restrict__ weight,
#if BIAS
                           const Pack* __restrict__ bias,
#endif
                           Pack* __restrict__ out, int n, int vectors, int h, int w, int padding, int p, int q) {
    // image [n][h][w][vectors]; weight [R][S][vectors]; out [n][p][q][vectors]
    const int groups = (q + PIXELS - 1) / PIXELS, index = blockIdx.x * BLOCK + threadIdx.x;
    if (index >= n * p * groups * vectors) return;
    const int vector = index % vectors, group = index / vectors, line = group / groups;
    const int first = group % groups * PIXELS, y = line % p * STRIDE - padding, x = first * STRIDE - padding;
    const Pack* from = image + (size_t)(line / p) * h * w * vectors + vector;
    float sum[PIXELS][LANES] = {};
#pragma unroll
    for (int i = 0; i < R; ++i) {
        const int row = y + i * DILATION;
        if (row < 0 || row >= h) continue;
        Pack window[SPAN];
#pragma unroll
        for (int k = 0; k < SPAN; ++k) {
            window[k] = Pack();
            if (x + k >= 0 && x + k < w) window[k] = from[(size_t)(row * w + x + k) * vectors];
        }
#pragma unroll
        for (int j = 0; j < S; ++j) {
            const Pack factor = weight[(i * S + j) * vectors + vector];
#pragma unroll
            for (int pixel = 0; pixel < PIXELS; ++pixel)
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane)
                    sum[pixel][lane] +=
                        lane_of<T>(window[pixel * STRIDE + j * DILATION], lane) * lane_of<T>(factor, lane);
        }
    }
#if BIAS
    const Pack added = bias[vector];
#endif
#pragma unroll
    for (int pixel = 0; pixel < PIXELS; ++pixel) {
        if (first + pixel >= q) break;
        Vector<T, LANES> result;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            float value = sum[pixel][lane];
#if BIAS
            value += lane_of<T>(added, lane);
#endif
            result.lane(lane) = (T)apply_activation<activation_of::EPILOGUE>(value);
        }
        out[((size_t)line * q + first + pixel) * vectors + vector] = result.raw;
    }
}
