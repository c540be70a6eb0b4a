// /// opbench
// title     = "one thread per output, 3-D grid: width on x, height on y, all depth slices on z"
// mechanism = ["coalesced"]
// tune      = { BLOCK_X = [32, 64, 128], BLOCK_Y = [8, 4] }
// supports  = { divisor = ["window", "inside"] }
// define    = { INSIDE = "divisor == 'inside'" }
// requires  = ["cdiv(p, BLOCK_Y) <= 65535", "n * c * z < 2 ** 31"]
//
// [[launch]]
// kernel = "avgpool3d_grid"
// grid   = ["cdiv(q, BLOCK_X)", "cdiv(p, BLOCK_Y)", "min(n * c * z, 65535)"]
// block  = ["BLOCK_X", "BLOCK_Y"]
// args   = [
//     "x", "out", "n * c", "d", "h", "w", "z", "p", "q", "window_d", "window_h", "window_w", "padding_d", "padding_h",
//     "padding_w", "stride",
// ]
// ///
//
// The first variant: rows and columns of the output come from the grid, so only the plane needs a division. Limits: if
// the image is a line, most rows of threads are idle; the window sizes are known only at run time, so a thread waits
// for each load in turn.

// Return the mean of a window of a volume [d][h][w].
__device__ __forceinline__ float mean_of_window(const float* __restrict__ volume, int z, int row, int column, int d,
                                                int h, int w, int window_d, int window_h, int window_w, int padding_d,
                                                int padding_h, int padding_w, int stride) {
    const int front = z * stride - padding_d, top = row * stride - padding_h, left = column * stride - padding_w;
    const int first_layer = max(front, 0), last_layer = min(front + window_d, d);
    const int first_row = max(top, 0), last_row = min(top + window_h, h);
    const int first_column = max(left, 0), last_column = min(left + window_w, w);
    float sum = 0.0f;
    for (int layer = first_layer; layer < last_layer; ++layer)
        for (int y = first_row; y < last_row; ++y)
            for (int at = first_column; at < last_column; ++at) sum += volume[((size_t)layer * h + y) * w + at];
    const int inside = (last_layer - first_layer) * (last_row - first_row) * (last_column - first_column);
    return sum / (float)(INSIDE ? inside : window_d * window_h * window_w);
}

// x [volumes][d][h][w], out [volumes][depth][p][q]
extern "C" __global__ void avgpool3d_grid(const float* __restrict__ x, float* __restrict__ out, int volumes, int d,
                                          int h, int w, int depth, int p, int q, int window_d, int window_h,
                                          int window_w, int padding_d, int padding_h, int padding_w, int stride) {
    const int column = blockIdx.x * BLOCK_X + threadIdx.x;
    const int row = blockIdx.y * BLOCK_Y + threadIdx.y;
    if (column >= q || row >= p) return;
    for (int layer = blockIdx.z; layer < volumes * depth; layer += gridDim.z) {
        const float* volume = x + (size_t)(layer / depth) * d * h * w;
        out[((size_t)layer * p + row) * q + column] =
            mean_of_window(volume, layer % depth, row, column, d, h, w, window_d, window_h, window_w, padding_d,
                           padding_h, padding_w, stride);
    }
}
