// /// opbench
// title     = "scale and sizes as compile-time constants: divisions become multiplications and shifts"
// builds_on = "grid3d"
// mechanism = ["coalesced", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512] }
// supports  = { mode = ["nearest", "bilinear"], dtype = ["f32", "bf16"] }
// requires  = ["n * c * p * q <= 4294966272"]
//
// [define]
// BF16     = "dtype == 'bf16'"
// BILINEAR = "mode == 'bilinear'"
// H        = "h"
// W        = "w"
// S        = "scale"
//
// [[launch]]
// kernel = "upsample2d_scale_constant"
// grid   = ["cdiv(n * c * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n * c"]
// ///
//
// A flat grid suits planes of every size. Divisions by constants become a multiplication and a shift each, and
// divisions for the bilinear weights become products with constants. Limits: each thread has one load (bilinear: four)
// and one store of single elements, so it needs four or eight times the requests of 16-byte accesses.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int P = H * S, Q = W * S;

extern "C" __global__ void __launch_bounds__(BLOCK)
    upsample2d_scale_constant(const T* __restrict__ x, T* __restrict__ out, int planes) {
    // x [planes][H][W]; out [planes][P][Q], fewer than 2^32 elements
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)planes * (unsigned)(P * Q)) return;
    const int column = (int)(i % Q), row = (int)(i / Q % P);
    const T* image = x + (size_t)(i / Q / P) * ((size_t)H * W);
#if BILINEAR
    // The position in units of half an output pixel; in these units it is a whole number.
    const unsigned down = (unsigned)max(2 * row + 1 - S, 0), along = (unsigned)max(2 * column + 1 - S, 0);
    const int top = (int)(down / (2 * S)), left = (int)(along / (2 * S));
    const float lower = (float)(down % (2 * S)) * (1.0f / (2 * S)), right = (float)(along % (2 * S)) * (1.0f / (2 * S));
    const T *above = image + (size_t)top * W, *below = image + (size_t)min(top + 1, H - 1) * W;
    const int next = min(left + 1, W - 1);
    const float first = (float)above[left] * (1 - right) + (float)above[next] * right;
    const float second = (float)below[left] * (1 - right) + (float)below[next] * right;
    out[i] = (T)(first * (1 - lower) + second * lower);
#else
    out[i] = image[(size_t)(row / S) * W + column / S];
#endif
}
