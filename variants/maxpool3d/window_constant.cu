// /// opbench
// title     = "window, stride and padding as compile-time constants: a window's loads are in flight together"
// builds_on = "flat_index"
// mechanism = ["coalesced", "flat_index", "unrolled", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512] }
// requires  = ["n * c * z * p * q <= 4294966272", "window_d * window_h * window_w <= 343"]
//
// [define]
// WINDOW_D  = "window_d"
// WINDOW_H  = "window_h"
// WINDOW_W  = "window_w"
// PADDING_D = "padding_d"
// PADDING_H = "padding_h"
// PADDING_W = "padding_w"
// STRIDE    = "stride"
// DILATION  = "dilation"
//
// [[launch]]
// kernel = "maxpool3d_window_constant"
// grid   = ["cdiv(n * c * z * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n * c", "d", "h", "w", "z", "p", "q"]
// ///
//
// The loops over the window are unrolled, so its loads are issued before the first comparison. An axis without padding
// needs no bounds checks, because the last window ends inside of it. Limits: the divisions; loads of 4 bytes; each
// element is loaded by all windows that contain it.

// x [volumes][d][h][w], out [volumes][depth][p][q], fewer than 2^32 elements
extern "C" __global__ void __launch_bounds__(BLOCK)
    maxpool3d_window_constant(const float* __restrict__ x, float* __restrict__ out, int volumes, int d, int h, int w,
                              int depth, int p, int q) {
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)volumes * (unsigned)depth * (unsigned)p * (unsigned)q) return;
    const unsigned column = i % (unsigned)q, line = i / (unsigned)q;
    const unsigned row = line % (unsigned)p, plane = line / (unsigned)p;
    const float* volume = x + (size_t)(plane / (unsigned)depth) * d * h * w;
    const int front = (int)(plane % (unsigned)depth) * STRIDE - PADDING_D;
    const int top = (int)row * STRIDE - PADDING_H, left = (int)column * STRIDE - PADDING_W;
    float largest = __int_as_float(0xff800000);  // -infinity
#pragma unroll
    for (int a = 0; a < WINDOW_D; ++a) {
#pragma unroll
        for (int r = 0; r < WINDOW_H; ++r) {
#pragma unroll
            for (int s = 0; s < WINDOW_W; ++s) {
                const int layer = front + a * DILATION, y = top + r * DILATION, at = left + s * DILATION;
                const bool inside = (PADDING_D == 0 || (unsigned)layer < (unsigned)d) &&
                                    (PADDING_H == 0 || (unsigned)y < (unsigned)h) &&
                                    (PADDING_W == 0 || (unsigned)at < (unsigned)w);
                if (inside) largest = fmaxf(largest, volume[((ptrdiff_t)layer * h + y) * w + at]);  // NaN is ignored
            }
        }
    }
    out[i] = largest;
}
