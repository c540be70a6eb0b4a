// /// opbench
// title     = "one thread per output, flat grid: coordinates by division and remainder"
// builds_on = "grid"
// mechanism = ["coalesced", "flat_index"]
// tune      = { BLOCK = [256, 128, 512] }
// supports  = { divisor = ["window", "inside"] }
// define    = { INSIDE = "divisor == 'inside'" }
// requires  = ["n * c * z * p * q <= 4294966272"]
//
// [[launch]]
// kernel = "avgpool3d_flat_index"
// grid   = ["cdiv(n * c * z * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = [
//     "x", "out", "n * c", "d", "h", "w", "z", "p", "q", "window_d", "window_h", "window_w", "padding_d", "padding_h",
//     "padding_w", "stride",
// ]
// ///
//
// No thread is idle, whatever the shape is: a line fills blocks as well as a volume, and rows can be short. Limits:
// four divisions by sizes that the compiler does not know; a thread waits for each load of its window in turn.

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

// x [volumes][d][h][w], out [volumes][depth][p][q], fewer than 2^32 elements
extern "C" __global__ void __launch_bounds__(BLOCK)
    avgpool3d_flat_index(const float* __restrict__ x, float* __restrict__ out, int volumes, int d, int h, int w,
                         int depth, int p, int q, int window_d, int window_h, int window_w, int padding_d,
                         int padding_h, int padding_w, int stride) {
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)volumes * (unsigned)depth * (unsigned)p * (unsigned)q) return;
    const unsigned column = i % (unsigned)q, line = i / (unsigned)q;
    const unsigned row = line % (unsigned)p, layer = line / (unsigned)p;
    const float* volume = x + (size_t)(layer / (unsigned)depth) * d * h * w;
    out[i] = mean_of_window(volume, layer % (unsigned)depth, row, column, d, h, w, window_d, window_h, window_w,
                            padding_d, padding_h, padding_w, stride);
}
