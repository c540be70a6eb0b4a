// /// opbench
// title     = "one thread per output, flat grid: coordinates by division and remainder"
// builds_on = "grid3d"
// mechanism = ["coalesced", "flat_index"]
// tune      = { BLOCK = [256, 128, 512] }
// define    = { POSITIONS = "positions == 'yes'" }
// supports  = { positions = ["no", "yes"] }
// requires  = ["n * c * p * q <= 4294966272"]
//
// [[launch]]
// kernel = "maxpool2d_flat_divmod"
// grid   = ["cdiv(n * c * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "positions?", "n * c", "h", "w", "p", "q", "window", "stride", "padding"]
// ///
//
// The grid is flat: only the last block has threads without an output, whatever the size of a plane, and a warp
// continues from the end of a row into the next row. So small planes are as fast as large ones. Limits: two integer
// divisions per output, some twenty instructions each. As in `grid3d`, loads wait for one another, because the window's
// bounds are known only at run time.
extern "C" __global__ void maxpool2d_flat_divmod(const float* __restrict__ x, float* __restrict__ out,
#if POSITIONS
                                                 unsigned char* __restrict__ positions,
#endif
                                                 int planes, int h, int w, int p, int q, int window, int stride,
                                                 int padding) {
    // x [planes][h][w]; out, positions [planes][p][q], fewer than 2^32 elements
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)planes * (unsigned)p * (unsigned)q) return;
    const unsigned column = i % (unsigned)q;
    const unsigned row = i / (unsigned)q % (unsigned)p;
    const unsigned plane = i / (unsigned)q / (unsigned)p;
    const int top = max((int)row * stride - padding, 0), bottom = min((int)row * stride - padding + window, h);
    const int left = max((int)column * stride - padding, 0), right = min((int)column * stride - padding + window, w);
    const float* image = x + (size_t)plane * h * w;
    float largest = __int_as_float(0xff800000);  // -infinity
    int place = 255;
    for (int y = top; y < bottom; ++y) {
        for (int z = left; z < right; ++z) {
            const float value = image[(size_t)y * w + z];
            if (value > largest) {
                largest = value;
                place = (y + padding - (int)row * stride) * window + z + padding - (int)column * stride;
            }
        }
    }
    out[i] = largest;
#if POSITIONS
    positions[i] = (unsigned char)place;
#endif
}
