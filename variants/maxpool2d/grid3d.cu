// /// opbench
// title    = "one thread per output, 3-D grid: columns on x, rows on y, planes on z"
// mechanism = ["coalesced", "no_division"]
// tune     = { BLOCK_X = [32, 64, 16], BLOCK_Y = [8, 4] }
// requires = ["cdiv(p, BLOCK_Y) <= 65535"]
//
// [[launch]]
// kernel = "maxpool2d_grid3d"
// grid   = ["cdiv(q, BLOCK_X)", "cdiv(p, BLOCK_Y)", "min(n * c, 65535)"]
// block  = ["BLOCK_X", "BLOCK_Y"]
// args   = ["x", "out", "n * c", "h", "w", "p", "q", "window", "stride", "padding"]
// ///
//
// The first variant: the mapping needs no division, and neighbouring threads compute neighbouring outputs of a row.
// Grid dimension z has at most 65535 blocks, so each block loops over planes. Limits: on small planes, most threads of
// a block are outside; the window's bounds are known only at run time, so a thread waits for each load in turn.
extern "C" __global__ void maxpool2d_grid3d(const float* __restrict__ x, float* __restrict__ out, int planes, int h,
                                            int w, int p, int q, int window, int stride, int padding) {
    // x [planes][h][w]; out [planes][p][q]
    const int column = blockIdx.x * BLOCK_X + threadIdx.x;
    const int row = blockIdx.y * BLOCK_Y + threadIdx.y;
    if (column >= q || row >= p) return;
    const int top = max(row * stride - padding, 0), bottom = min(row * stride - padding + window, h);
    const int left = max(column * stride - padding, 0), right = min(column * stride - padding + window, w);
    for (int plane = blockIdx.z; plane < planes; plane += gridDim.z) {
        const float* image = x + (size_t)plane * h * w;
        float largest = __int_as_float(0xff800000);  // -infinity
        for (int y = top; y < bottom; ++y) {
            for (int z = left; z < right; ++z) {
                const float value = image[(size_t)y * w + z];
                if (value > largest) largest = value;
            }
        }
        out[((size_t)plane * p + row) * q + column] = largest;
    }
}
