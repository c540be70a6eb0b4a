// /// opbench
// title     = "nhwc: 16-byte accesses along the channels"
// builds_on = "scale_constant"
// mechanism = ["coalesced", "vectorised_access", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512] }
// supports  = { layout = ["nhwc"], dtype = ["f32", "bf16"], mode = ["nearest", "bilinear"] }
// requires  = ["n * c * h * w <= 4294966272", "scale <= 8"]
//
// [define]
// BF16     = "dtype == 'bf16'"
// BILINEAR = "mode == 'bilinear'"
// SCALE    = "scale"
// LANES    = "c // packs"
// BYTES    = "(2 if dtype == 'bf16' else 4) * LANES"
// PACK     = "'unsigned short' if BYTES == 2 else 'unsigned' if BYTES == 4 else 'uint2' if BYTES == 8 else 'uint4'"
// PACKS    = "packs"
// H        = "h"
// W        = "w"
//
// [[launch]]
// kernel = "upsample2d_backward_nhwc_vector"
// grid   = ["cdiv(n * h * w * packs, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["dout", "dx", "n"]
// ///
//
// Each thread uses the widest vector of up to 16 bytes that divides a pixel's channels. At scale 2 it has four loads in
// flight and one store; for bilinear it has 16 loads, and repeated ones hit the caches. Limit: HBM.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int P = SCALE * H, Q = SCALE * W;
constexpr int REACH = BILINEAR ? SCALE / 2 : 0;  // how far the outputs that use a pixel extend beyond its own outputs
typedef PACK Pack;                               // what one load or store moves

__device__ __forceinline__ float lane_of(const Pack& pack, int lane) {
    return (float)reinterpret_cast<const T*>(&pack)[lane];
}

// By which weight, along one axis, a large pixel `offset` from the first over a small one was made of that, which is
// the first or last of its axis, or neither. Known to the compiler but for the borders.
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
    upsample2d_backward_nhwc_vector(const Pack* __restrict__ dout, Pack* __restrict__ dx, int n) {
    // dout [n][P][Q][PACKS]; dx [n][H][W][PACKS]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (H * W * PACKS)) return;
    const unsigned pack = i % PACKS, image = i / PACKS / (H * W);
    const int z = (int)(i / PACKS % W), y = (int)(i / PACKS / W % H);
    const Pack* gradient = dout + (size_t)image * ((size_t)P * Q * PACKS) + pack;
    float sum[LANES] = {};
#pragma unroll
    for (int r = -REACH; r < SCALE + REACH; ++r) {
        const int row = y * SCALE + r;
        if (BILINEAR && (unsigned)row >= P) continue;
        float line[LANES] = {};
#pragma unroll
        for (int s = -REACH; s < SCALE + REACH; ++s) {
            const int column = z * SCALE + s;
            if (BILINEAR && (unsigned)column >= Q) continue;
            const Pack v = gradient[((size_t)row * Q + column) * PACKS];
            const float by = weight(s, z == 0, z == W - 1);
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) line[lane] += by * lane_of(v, lane);
        }
        const float share = weight(r, y == 0, y == H - 1);
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) sum[lane] += share * line[lane];
    }
    Pack result;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) reinterpret_cast<T*>(&result)[lane] = (T)sum[lane];
    dx[i] = result;
}
