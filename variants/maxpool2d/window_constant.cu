// /// opbench
// title     = "window, stride and padding as compile-time constants: a window's loads are in flight together"
// builds_on = "flat_divmod"
// mechanism = ["coalesced", "unrolled", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512] }
// define    = { WINDOW = "window", STRIDE = "stride", PADDING = "padding" }
// requires  = ["n * c * p * q <= 4294966272", "window <= 16"]
//
// [[launch]]
// kernel = "maxpool2d_window_constant"
// grid   = ["cdiv(n * c * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n * c", "h", "w", "p", "q"]
// ///
//
// The loops over the window are unrolled, so all its loads are issued before the first comparison. A window without
// padding needs no bounds checks, because its last row and column are inside by the definition of p and q. Limits: the
// divisions; 4-byte loads, which at stride 2 use only every second float of a sector; 4-byte stores.
extern "C" __global__ void maxpool2d_window_constant(const float* __restrict__ x, float* __restrict__ out, int planes,
                                                     int h, int w, int p, int q) {
    // x [planes][h][w]; out [planes][p][q], fewer than 2^32 elements
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)planes * (unsigned)p * (unsigned)q) return;
    const unsigned column = i % (unsigned)q;
    const unsigned row = i / (unsigned)q % (unsigned)p;
    const unsigned plane = i / (unsigned)q / (unsigned)p;
    const int top = (int)row * STRIDE - PADDING;
    const int left = (int)column * STRIDE - PADDING;
    const float* image = x + (size_t)plane * h * w;
    float largest = __int_as_float(0xff800000);  // -infinity
#pragma unroll
    for (int r = 0; r < WINDOW; ++r) {
#pragma unroll
        for (int s = 0; s < WINDOW; ++s) {
            const int y = top + r, z = left + s;
            const bool inside = PADDING == 0 || ((unsigned)y < (unsigned)h && (unsigned)z < (unsigned)w);
            if (inside) largest = fmaxf(largest, image[(ptrdiff_t)y * w + z]);  // NaN is ignored, as by >
        }
    }
    out[i] = largest;
}
