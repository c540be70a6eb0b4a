// /// opbench
// title     = "nhwc: all sizes as compile-time constants: a window's loads are in flight together"
// builds_on = "nhwc_flat_divmod"
// mechanism = ["coalesced", "unrolled", "compile_time_sizes", "overlapped_launch"]
// tune      = { BLOCK = [256, 128, 512] }
// supports  = { layout = ["nhwc"], dtype = ["f32", "bf16"] }
// requires  = ["n * p * q * c <= 4294966272", "window <= 9"]
//
// [define]
// BF16    = "dtype == 'bf16'"
// WINDOW  = "window"
// STRIDE  = "stride"
// PADDING = "padding"
// C       = "c"
// H       = "h"
// W       = "w"
// P       = "p"
// Q       = "q"
//
// [[launch]]
// kernel = "maxpool2d_nhwc_window_constant"
// grid   = ["cdiv(n * p * q * c, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n"]
// programmatic = "dtype == 'bf16'"
// ///
//
// The loops over the window are unrolled, so its loads are issued before the first comparison; divisions by constants
// become multiplications. Limits: with 4 bytes (2 in bf16) per load and store, there are many requests, but too few
// bytes in flight to hide the memory latency.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;

extern "C" __global__ void __launch_bounds__(BLOCK)
    maxpool2d_nhwc_window_constant(const T* x, T* __restrict__ out, int n) {
    // x [n][H][W][C]; out [n][P][Q][C], fewer than 2^32 elements
#if __CUDA_ARCH__ >= 900  // blocks take their places as those of the launch ahead end
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (unsigned)(P * Q * C)) return;
    const unsigned channel = i % C;
    const int column = (int)(i / C % Q), row = (int)(i / C / Q % P);
    const unsigned image = i / C / Q / P;
    const int top = row * STRIDE - PADDING, left = column * STRIDE - PADDING;
    const T* source = x + (size_t)image * ((size_t)H * W * C) + channel;
    float largest = __int_as_float(0xff800000);  // -infinity
#pragma unroll
    for (int r = 0; r < WINDOW; ++r) {
#pragma unroll
        for (int s = 0; s < WINDOW; ++s) {
            const int y = top + r, z = left + s;
            const bool inside = PADDING == 0 || ((unsigned)y < H && (unsigned)z < W);
            if (inside) largest = fmaxf(largest, (float)source[((ptrdiff_t)y * W + z) * C]);
        }
    }
    out[i] = largest;
}
