// /// opbench
// title     = "window, stride and padding as compile-time constants: a window's loads are in flight together"
// builds_on = "flat_divmod"
// mechanism = ["coalesced", "unrolled", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512] }
// supports  = { divisor = ["window", "inside"], dtype = ["f32", "bf16"] }
// requires  = ["n * c * p * q <= 4294966272", "window <= 16"]
//
// [define]
// BF16    = "dtype == 'bf16'"
// INSIDE  = "divisor == 'inside' and padding > 0"
// WINDOW  = "window"
// STRIDE  = "stride"
// PADDING = "padding"
//
// [[launch]]
// kernel = "avgpool2d_window_constant"
// grid   = ["cdiv(n * c * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n * c", "h", "w", "p", "q"]
// ///
//
// The loops over the window are unrolled, so all its loads are issued before the first addition. A window without
// padding needs no bounds checks, because its last row and column are inside by the definition of p and q. Limits: the
// divisions; loads of one element, which at stride 2 use only every second element of a sector; stores of one element.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void avgpool2d_window_constant(const T* __restrict__ x, T* __restrict__ out, int planes, int h,
                                                     int w, int p, int q) {
    // x [planes][h][w]; out [planes][p][q], fewer than 2^32 elements
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)planes * (unsigned)p * (unsigned)q) return;
    const unsigned column = i % (unsigned)q;
    const unsigned row = i / (unsigned)q % (unsigned)p;
    const unsigned plane = i / (unsigned)q / (unsigned)p;
    const int top = (int)row * STRIDE - PADDING;
    const int left = (int)column * STRIDE - PADDING;
    const T* image = x + (size_t)plane * h * w;
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < WINDOW; ++r) {
#pragma unroll
        for (int s = 0; s < WINDOW; ++s) {
            const int y = top + r, z = left + s;
            const bool inside = PADDING == 0 || ((unsigned)y < (unsigned)h && (unsigned)z < (unsigned)w);
            if (inside) sum += (float)image[(ptrdiff_t)y * w + z];
        }
    }
#if INSIDE
    const int height = min(top + WINDOW, h) - max(top, 0), width = min(left + WINDOW, w) - max(left, 0);
    out[i] = (T)(sum / (height * width));
#else
    out[i] = (T)(sum * (1.0f / (WINDOW * WINDOW)));
#endif
}
