// /// opbench
// title     = "LAYERS x COLUMNS outputs per thread from vector loads; all sizes are compile-time constants"
// builds_on = "window_constant"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "compile_time_sizes"]
// tune      = { COLUMNS = [2, 4, 1], LAYERS = [1, 2, 4], BLOCK = [256, 128] }
// where     = ["LAYERS * COLUMNS <= 8"]
// supports  = { divisor = ["window", "inside"], dtype = ["f32", "bf16"] }
// requires  = [
//     "n * c * z * p * q <= 4294966272",
//     "LAYERS == 1 or z > 1",
//     "(COLUMNS - 1) * stride + window_w <= 96",
//     "(LAYERS - 1 + window_d) * window_h * (window_w + COLUMNS) <= 1024",
// ]
//
// [define]
// INSIDE    = "divisor == 'inside' and padding > 0"
// WINDOW_D  = "window_d"
// WINDOW_H  = "window_h"
// WINDOW_W  = "window_w"
// PADDING_D = "padding_d"
// PADDING_H = "padding_h"
// PADDING_W = "padding_w"
// STRIDE    = "stride"
// BF16      = "dtype == 'bf16'"
// D         = "d"
// H         = "h"
// W         = "w"
// Z         = "z"
// P         = "p"
// Q         = "q"
//
// [[launch]]
// kernel = "avgpool3d_multi_output"
// grid   = ["cdiv(n * c * cdiv(z, LAYERS) * p * cdiv(q, COLUMNS), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n * c"]
// ///
//
// The windows of neighbouring outputs share the elements that they have in common: along a row in registers, and with
// LAYERS > 1 also the results of whole layers of a window. Sums are computed along rows, then over rows, then over
// layers. Vectors are as wide as the row length and COLUMNS * stride allow. All sizes are macros, so divisions become
// multiplications. Limit: DRAM; if windows overlap in all directions, the loads that rows of outputs do not share,
// which L1 and L2 serve.

#include <opbench/volume_windows.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef PooledAxis<D, WINDOW_D, STRIDE, PADDING_D, 1> Depth;
typedef PooledAxis<H, WINDOW_H, STRIDE, PADDING_H, 1> Height;
typedef PooledAxis<W, WINDOW_W, STRIDE, PADDING_W, 1> Width;
constexpr int LAYER_GROUPS = (Z + LAYERS - 1) / LAYERS, COLUMN_GROUPS = (Q + COLUMNS - 1) / COLUMNS;

// x [volumes][D][H][W], out [volumes][Z][P][Q], both aligned to 16 bytes
extern "C" __global__ void __launch_bounds__(BLOCK)
    avgpool3d_multi_output(const T* __restrict__ x, T* __restrict__ out, int volumes) {
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)volumes * (LAYER_GROUPS * P * COLUMN_GROUPS)) return;
    const int column = (int)(i % COLUMN_GROUPS) * COLUMNS;
    const int row = (int)(i / COLUMN_GROUPS % P);
    const int layer = (int)(i / COLUMN_GROUPS / P % LAYER_GROUPS) * LAYERS;
    const unsigned volume = i / COLUMN_GROUPS / P / LAYER_GROUPS;
    float result[LAYERS][COLUMNS];
    pool_windows<Depth, Height, Width>(x + volume * ((size_t)D * H * W), layer, row, column, 0.0f, result,
                                       [](float x, float y) { return x + y; });
#pragma unroll
    for (int l = 0; l < LAYERS; ++l) {
        if (layer + l >= Z) break;
        T* const target = out + (((size_t)volume * Z + layer + l) * P + row) * Q + column;
        const int front = (layer + l) * STRIDE - PADDING_D, top = row * STRIDE - PADDING_H;
        const int layers = min(front + WINDOW_D, D) - max(front, 0), rows = min(top + WINDOW_H, H) - max(top, 0);
        Vector<T, COLUMNS> pack;
#pragma unroll
        for (int g = 0; g < COLUMNS; ++g) {
            const int first = (column + g) * STRIDE - PADDING_W;
            const int divisor =
                INSIDE ? layers * rows * (min(first + WINDOW_W, W) - max(first, 0)) : WINDOW_D * WINDOW_H * WINDOW_W;
            pack.lane(g) = (T)(result[l][g] / (float)divisor);
        }
        if (Q % COLUMNS == 0) {
            *reinterpret_cast<Vector<T, COLUMNS>*>(target) = pack;
        } else {
#pragma unroll
            for (int g = 0; g < COLUMNS; ++g)
                if (column + g < Q) target[g] = pack.lane(g);
        }
    }
}
