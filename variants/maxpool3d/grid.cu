// /// opbench
// title     = "one thread per output, 3-D grid: width on x, height on y, all depth slices on z"
// mechanism = ["coalesced"]
// tune      = { BLOCK_X = [32, 64, 128], BLOCK_Y = [8, 4] }
// requires  = ["cdiv(p, BLOCK_Y) <= 65535", "n * c * z < 2 ** 31"]
//
// [[launch]]
// kernel = "maxpool3d_grid"
// grid   = ["cdiv(q, BLOCK_X)", "cdiv(p, BLOCK_Y)", "min(n * c * z, 65535)"]
// block  = ["BLOCK_X", "BLOCK_Y"]
// args   = [
//     "x", "out", "n * c", "d", "h", "w", "z", "p", "q", "window_d", "window_h", "window_w", "padding_d", "padding_h",
//     "padding_w", "stride", "dilation",
// ]
// ///
//
// The first variant: the grid gives the row and the column of an output, so only its plane needs a division. Limits: if
// the planes are lines, most rows of threads are idle; the windows' sizes are known only at run time, so a thread waits
// for each load before it issues the next.

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

// x [volumes][d][h][w], out [volumes][depth][p][q]
extern "C" __global__ void maxpool3d_grid(const float* __restrict__ x, float* __restrict__ out, int volumes, int d,
                                          int h, int w, int depth, int p, int q, int window_d, int window_h,
                                          int window_w, int padding_d, int padding_h, int padding_w, int stride,
                                          int dilation) {
    const int column = blockIdx.x * BLOCK_X + threadIdx.x;
    const int row = blockIdx.y * BLOCK_Y + threadIdx.y;
    if (column >= q || row >= p) return;
    for (int layer = blockIdx.z; layer < volumes * depth; layer += gridDim.z) {
        const float* volume = x + (size_t)(layer / depth) * d * h * w;
        out[((size_t)layer * p + row) * q + column] =
            largest_of_window(volume, layer % depth, row, column, d, h, w, window_d, window_h, window_w, padding_d,
                              padding_h, padding_w, stride, dilation);
    }
}
