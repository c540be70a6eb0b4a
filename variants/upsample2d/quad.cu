// /// opbench
// title     = "one thread per input pixel, which writes the scale x scale outputs of the pixel"
// builds_on = "scale_constant"
// mechanism = ["coalesced", "register_tile", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512] }
// supports  = { mode = ["nearest", "bilinear"], dtype = ["f32", "bf16"] }
// requires  = ["n * c * h * w <= 4294966272", "scale <= 8"]
//
// [define]
// BF16     = "dtype == 'bf16'"
// BILINEAR = "mode == 'bilinear'"
// H        = "h"
// W        = "w"
// S        = "scale"
//
// [[launch]]
// kernel = "upsample2d_quad"
// grid   = ["cdiv(n * c * h * w, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n * c"]
// ///
//
// A thread loads an input pixel once and computes all its scale * scale outputs: one load instead of scale * scale
// (bilinear: nine loads instead of four per output). The index arithmetic is shared too. Limit: each store writes one
// element, and neighbouring threads write `scale` elements apart, so several instructions write into each sector.

#include <opbench/upsampling.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Phases<S> Phase;

extern "C" __global__ void __launch_bounds__(BLOCK)
    upsample2d_quad(const T* __restrict__ x, T* __restrict__ out, int planes) {
    // x [planes][H][W], fewer than 2^32 elements; out [planes][H * S][W * S]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)planes * (unsigned)(H * W)) return;
    const int column = (int)(i % W), row = (int)(i / W % H);
    const size_t plane = i / W / H;
    T* target = out + (plane * (H * S) + (size_t)row * S) * (W * S) + column * S;
#if BILINEAR
    const T* image = x + plane * ((size_t)H * W);
    const int columns[3] = {max(column - 1, 0), column, min(column + 1, W - 1)};
    const int rows[3] = {max(row - 1, 0), row, min(row + 1, H - 1)};
    float v[3][3];
#pragma unroll
    for (int k = 0; k < 3; ++k) {
#pragma unroll
        for (int j = 0; j < 3; ++j) v[k][j] = (float)image[(size_t)rows[k] * W + columns[j]];
    }
#pragma unroll
    for (int s = 0; s < S; ++s) {
        const int left = Phase::before(s) ? 0 : 1;
        float across[3];
#pragma unroll
        for (int k = 0; k < 3; ++k) across[k] = between(v[k][left], v[k][left + 1], Phase::weight(s));
#pragma unroll
        for (int r = 0; r < S; ++r) {
            const int top = Phase::before(r) ? 0 : 1;
            target[(size_t)r * (W * S) + s] = (T)between(across[top], across[top + 1], Phase::weight(r));
        }
    }
#else
    const T value = x[i];
#pragma unroll
    for (int r = 0; r < S; ++r) {
#pragma unroll
        for (int s = 0; s < S; ++s) target[(size_t)r * (W * S) + s] = value;
    }
#endif
}
