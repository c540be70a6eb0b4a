// /// opbench
// title     = "one thread per output, 3-D grid: columns on x, rows on y, planes on z"
// builds_on = "flat_divmod"
// mechanism = ["coalesced", "no_division"]
// tune      = { BLOCK_X = [64, 32, 128], BLOCK_Y = [4, 8] }
// define    = { BF16 = "dtype == 'bf16'", BILINEAR = "mode == 'bilinear'" }
// supports  = { mode = ["nearest", "bilinear"], dtype = ["f32", "bf16"] }
// requires  = ["cdiv(p, BLOCK_Y) <= 65535"]
//
// [[launch]]
// kernel = "upsample2d_grid3d"
// grid   = ["cdiv(q, BLOCK_X)", "cdiv(p, BLOCK_Y)", "min(n * c, 65535)"]
// block  = ["BLOCK_X", "BLOCK_Y"]
// args   = ["x", "out", "n * c", "h", "w", "scale"]
// ///
//
// The coordinates of an output come from the grid without a division; those of its source pixel still need divisions,
// once per thread. The third dimension of a grid has at most 65535 blocks, so each block loops over several planes.
// Limits: on small planes most threads of a block have no output; each load and store moves one element.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void upsample2d_grid3d(const T* __restrict__ x, T* __restrict__ out, int planes, int h, int w,
                                             int scale) {
    // x [planes][h][w]; out [planes][h * scale][w * scale]
    const int p = h * scale, q = w * scale;
    const int column = blockIdx.x * BLOCK_X + threadIdx.x;
    const int row = blockIdx.y * BLOCK_Y + threadIdx.y;
    if (column >= q || row >= p) return;
#if BILINEAR
    // The position in units of half an output pixel, where it is a whole number.
    const int down = max(2 * row + 1 - scale, 0), along = max(2 * column + 1 - scale, 0);
    const int top = down / (2 * scale), left = along / (2 * scale);
    const float lower = (float)(down - top * 2 * scale) / (2 * scale);
    const float right = (float)(along - left * 2 * scale) / (2 * scale);
    const int bottom = min(top + 1, h - 1), next = min(left + 1, w - 1);
#else
    const int source = row / scale * w + column / scale;
#endif
    for (int plane = blockIdx.z; plane < planes; plane += gridDim.z) {
        const T* image = x + (size_t)plane * h * w;
#if BILINEAR
        const T *above = image + (size_t)top * w, *below = image + (size_t)bottom * w;
        const float first = (float)above[left] * (1 - right) + (float)above[next] * right;
        const float second = (float)below[left] * (1 - right) + (float)below[next] * right;
        const T value = (T)(first * (1 - lower) + second * lower);
#else
        const T value = image[source];
#endif
        out[((size_t)plane * p + row) * q + column] = value;
    }
}
