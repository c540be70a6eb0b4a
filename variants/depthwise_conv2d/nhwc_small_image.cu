// /// opbench
// title     = "small images: one thread per output pixel and two channels; all its loads come before its products"
// builds_on = "nhwc_columns"
// mechanism = ["coalesced", "compile_time_sizes", "vectorised_access", "register_tile", "overlapped_launch"]
// tune      = { PIXELS = [1, 2], BLOCK = [128, 64] }
// supports.layout   = ["nhwc"]
// supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish"]
// supports.dtype    = ["f32", "bf16"]
// requires  = [
//     "n * c * p * q < 2 ** 31 and n * c * h * w < 2 ** 31", "r * s <= 9",
//     "(PIXELS - 1) * stride + (s - 1) * dilation + 1 <= 12",
// ]
//
// [define]
// BF16 = "dtype == 'bf16'"
// BIAS = "epilogue != 'none'"
// EPILOGUE = "epilogue"
// LANES = "min(lanes, 2)"
// R = "r"
// S = "s"
// STRIDE = "stride"
// DILATION = "dilation"
// SPAN = "(PIXELS - 1) * stride + (s - 1) * dilation + 1"
//
// [[launch]]
// kernel = "depthwise_nhwc_small_image"
// grid   = ["cdiv(n * p * cdiv(q, PIXELS) * (c // LANES), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["image", "weight", "bias?", "out", "n", "c // LANES", "h", "w", "padding", "p", "q"]
// programmatic = true
// early  = ["weight", "bias?"]
// ///
//
// In nhwc_columns, one small image has too few vectors of channels to occupy all multiprocessors, and a thread waits
// for the loads of one row after the other. Here a thread computes two channels, so there are more threads, and all its
// loads are in flight together. The start of the launch and the loads of the filter overlap the end of the previous
// launch. Filters of 5 x 5 were slower this way than in filter_constant. Limit: the launch and one access to memory.

#include <opbench/activations.cuh>
#include <opbench/overlap.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Packed<T, LANES> Pack;

extern "C" __global__ void __launch_bounds__(BLOCK)
    depthwise_nhwc_small_image(const Pack* image, const Pack* __restrict__ weight,
#if BIAS
                               const Pack* __restrict__ bias,
#endif
                               Pack* __restrict__ out, int n, int vectors, int h, int w, int padding, int p, int q) {
    // image [n][h][w][vectors]; weight [R][S][vectors]; bias [vectors]; out [n][p][q][vectors]
    let_next_launch_start();
    const int groups = (q + PIXELS - 1) / PIXELS, index = blockIdx.x * BLOCK + threadIdx.x;
    if (index >= n * p * groups * vectors) return;
    const int vector = index % vectors, group = index / vectors, line = group / groups;
    const int first = group % groups * PIXELS, y = line % p * STRIDE - padding, x = first * STRIDE - padding;
    const Pack* from = image + (size_t)(line / p) * h * w * vectors + vector;
    Pack filter[R * S], window[R * SPAN];
#pragma unroll
    for (int e = 0; e < R * S; ++e) filter[e] = weight[e * vectors + vector];
#if BIAS
    const Pack added = bias[vector];
#endif
    wait_for_launches_before();
#pragma unroll
    for (int e = 0; e < R * SPAN; ++e) {
        const int row = y + e / SPAN * DILATION, column = x + e % SPAN;
        window[e] = Pack();
        if (row >= 0 && row < h && column >= 0 && column < w) window[e] = from[(size_t)(row * w + column) * vectors];
    }
#pragma unroll
    for (int pixel = 0; pixel < PIXELS; ++pixel) {
        if (first + pixel >= q) break;
        float sum[LANES] = {};
        Vector<T, LANES> result;
#pragma unroll
        for (int e = 0; e < R * S; ++e)
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane)
                sum[lane] += lane_of<T>(window[e / S * SPAN + pixel * STRIDE + e % S * DILATION], lane) *
                             lane_of<T>(filter[e], lane);
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
#if BIAS
            sum[lane] += lane_of<T>(added, lane);
#endif
            result.lane(lane) = (T)apply_activation<activation_of::EPILOGUE>(sum[lane]);
        }
        out[((size_t)line * q + first + pixel) * vectors + vector] = result.raw;
    }
}
