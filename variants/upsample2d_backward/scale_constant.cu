// /// opbench
// title     = "scale and sizes as compile-time constants: loads in flight together, interpolation weights constant"
// builds_on = "gather"
// mechanism = ["coalesced", "unrolled", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512] }
// requires  = ["n * c * h * w <= 4294966272", "scale <= 8"]
//
// [supports]
// layout = ["nchw", "nhwc"]
// dtype  = ["f32", "bf16"]
// mode   = ["nearest", "bilinear"]
//
// [define]
// BF16     = "dtype == 'bf16'"
// BILINEAR = "mode == 'bilinear'"
// SCALE    = "scale"
// NHWC     = "layout == 'nhwc'"
// C        = "c"
// H        = "h"
// W        = "w"
//
// [[launch]]
// kernel = "upsample2d_backward_scale_constant"
// grid   = ["cdiv(n * c * h * w, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["dout", "dx", "n"]
// ///
//
// The loops over the outputs of one pixel are unrolled, divisions become multiplications, and a weight is a constant
// except for the first and last pixel of an axis. Limits: one element per load and store; in nchw the loads of
// neighbouring lanes are SCALE apart.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int P = SCALE * H, Q = SCALE * W;
constexpr int REACH = BILINEAR ? SCALE / 2 : 0;  // how far the outputs that use a pixel extend beyond its own outputs

// Return the weight, along one axis, with which a small pixel was used for the large pixel at `offset` from its first
// own output. `first`, `last`: whether the small pixel is the first or the last of its axis. Except at the borders, the
// compiler knows the weight.
__device__ __forceinline__ float weight(int offset, bool first, bool last) {
#if BILINEAR
    const int away = 2 * offset + 1 - SCALE;  // in units of 1 / (2 SCALE)
    if (away < 0 ? first : away > 0 && last) return 1.0f;
    return (float)(2 * SCALE - (away < 0 ? -away : away)) / (float)(2 * SCALE);
#else
    return 1.0f;
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    upsample2d_backward_scale_constant(const T* __restrict__ dout, T* __restrict__ dx, int n) {
    // dout [n][C][P][Q] or [n][P][Q][C]; dx [n][C][H][W] or [n][H][W][C], fewer than 2^32 elements
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (C * H * W)) return;
#if NHWC
    constexpr size_t STEP = C;  // from one pixel to the next
    const unsigned pixel = i / C % (H * W);
    const T* gradient = dout + (size_t)(i / C / (H * W)) * ((size_t)P * Q * C) + i % C;
#else
    constexpr size_t STEP = 1;
    const unsigned pixel = i % (H * W);
    const T* gradient = dout + (size_t)(i / (H * W)) * ((size_t)P * Q);
#endif
    const int y = (int)(pixel / W), z = (int)(pixel % W);
    float sum = 0.0f;
#pragma unroll
    for (int r = -REACH; r < SCALE + REACH; ++r) {
        const int row = y * SCALE + r;
        if (BILINEAR && (unsigned)row >= P) continue;
        float line = 0.0f;
#pragma unroll
        for (int s = -REACH; s < SCALE + REACH; ++s) {
            const int column = z * SCALE + s;
            if (BILINEAR && (unsigned)column >= Q) continue;
            line += weight(s, z == 0, z == W - 1) * (float)gradient[((size_t)row * Q + column) * STEP];
        }
        sum += weight(r, y == 0, y == H - 1) * line;
    }
    dx[i] = (T)sum;
}
