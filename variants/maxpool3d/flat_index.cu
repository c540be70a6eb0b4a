// /// opbench
// title     = "one thread per output, flat grid: coordinates by division and remainder"
// builds_on = "grid"
// mechanism = ["coalesced", "flat_index"]
// tune      = { BLOCK = [256, 128, 512] }
// requires  = ["n * c * z * p * q <= 4294966272"]
//
// [[launch]]
// kernel = "maxpool3d_flat_index"
// grid   = ["cdiv(n * c * z * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = [
//     "x", "out", "n * c", "d", "h", "w", "z", "p", "q", "window_d", "window_h", "window_w", "padding_d", "padding_h",
//     "padding_w", "stride", "dilation",
// ]
// ///
//
// No thread is idle, whatever the shape is: a line fills blocks as well as a volume, and rows can be short. Limits:
// four divisions by sizes that the compiler does not know; a thread waits for each load of its window in turn.

// Return the largest element of a window of a volume [d][h][w].
__device__ __forceinline__ float largest_of_window(const float* __restrict__ volume, int z, int row, int column, int d,
                                                   int h, int w, int window_d, int window_h, int window_w,
                                                   int padding_d, int padding_h, int padding_w, int stride,
                                                   int dilation) {
    float largest = __int_as_float(0xff800000);  // -infinity
    for (int a = 0; a < window_d; ++a) {
        const int layer = z * stride - padding_d + a * dilation;
        if ((unsigned)layer >= (unsigned)d) continue;
        for (int r = 0; r < window_h; ++r) {
            const int y = row * stride - padding_h + r * dilation;
            if ((unsigned)y >= (unsigned)h) continue;
            for (int s = 0; s < window_w; ++s) {
                const int at = column * stride - padding_w + s * dilation;
                if ((unsigned)at >= (unsigned)w) continue;
                const float value = volume[((size_t)layer * h + y) * w + at];
                if (value > largest) largest = value;
            }
        }
    }
    return largest;
}

// x [volumes][d][h][w], out [volumes][depth][p][q], fewer than 2^32 elements
extern "C" __global__ void __launch_bounds__(BLOCK)
    maxpool3d_flat_index(const float* __restrict__ x, float* __restrict__ out, int volumes, int d, int h, int w,
                         int depth, int p, int q, int window_d, int window_h, int window_w, int padding_d,
                         int padding_h, int padding_w, int stride, int dilation) {
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)volumes * (unsigned)depth * (unsigned)p * (unsigned)q) return;
    const unsigned column = i % (unsigned)q, line = i / (unsigned)q;
    const unsigned row = line % (unsigned)p, layer = line / (unsigned)p;
    const float* volume = x + (size_t)(layer / (unsigned)depth) * d * h * w;
    out[i] = largest_of_window(volume, layer % (unsigned)depth, row, column, d, h, w, window_d, window_h, window_w,
                               padding_d, padding_h, padding_w, stride, dilation);
}
