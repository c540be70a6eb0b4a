// /// opbench
// title     = "window, stride and padding as compile-time constants: a window's loads are in flight together"
// builds_on = "flat_index"
// mechanism = ["coalesced", "flat_index", "unrolled", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512] }
// supports  = { divisor = ["window", "inside"] }
// requires  = ["n * c * z * p * q <= 4294966272", "window_d * window_h * window_w <= 343"]
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
//
// [[launch]]
// kernel = "avgpool3d_window_constant"
// grid   = ["cdiv(n * c * z * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n * c", "d", "h", "w", "z", "p", "q"]
// ///
//
// The loops over the window are unrolled, so its loads are issued before the first addition. An axis without padding
// needs no bounds checks, because the last window ends inside of it. Limits: the divisions; loads of 4 bytes; each
// element is loaded by all windows that contain it.

// x [volumes][d][h][w], out [volumes][depth][p][q], fewer than 2^32 elements
extern "C" __global__ void __launch_bounds__(BLOCK)
    avgpool3d_window_constant(const float* __restrict__ x, float* __restrict__ out, int volumes, int d, int h, int w,
                              int depth, int p, int q) {
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)volumes * (unsigned)depth * (unsigned)p * (unsigned)q) return;
    const unsigned column = i % (unsigned)q, line = i / (unsigned)q;
    const unsigned row = line % (unsigned)p, plane = line / (unsigned)p;
    const float* volume = x + (size_t)(plane / (unsigned)depth) * d * h * w;
    const int front = (int)(plane % (unsigned)depth) * STRIDE - PADDING_D;
    const int top = (int)row * STRIDE - PADDING_H, left = (int)column * STRIDE - PADDING_W;
    float sum = 0.0f;
#pragma unroll
    for (int a = 0; a < WINDOW_D; ++a) {
#pragma unroll
        for (int r = 0; r < WINDOW_H; ++r) {
#pragma unroll
            for (int s = 0; s < WINDOW_W; ++s) {
                const int layer = front + a, y = top + r, at = left + s;
                const bool inside = (PADDING_D == 0 || (unsigned)layer < (unsigned)d) &&
                                    (PADDING_H == 0 || (unsigned)y < (unsigned)h) &&
                                    (PADDING_W == 0 || (unsigned)at < (unsigned)w);
                if (inside) sum += volume[((ptrdiff_t)layer * h + y) * w + at];
            }
        }
    }
    const int layers = min(front + WINDOW_D, d) - max(front, 0), rows = min(top + WINDOW_H, h) - max(top, 0);
    const int columns = min(left + WINDOW_W, w) - max(left, 0);
    out[i] = sum / (float)(INSIDE ? layers * rows * columns : WINDOW_D * WINDOW_H * WINDOW_W);
}
