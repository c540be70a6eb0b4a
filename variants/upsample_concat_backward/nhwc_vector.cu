// /// opbench
// title     = "nhwc: 16-byte accesses along the channels, 2x2 pixels per thread, copied or added"
// builds_on = "flat_divmod"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512], STREAM = [0, 1] }
// supports  = { layout = ["nhwc"], dtype = ["f32", "bf16"] }
// requires  = ["n * h * w * (c // lanes) <= 4294966272"]
//
// [define]
// BF16   = "dtype == 'bf16'"
// LANES  = "lanes"
// BYTES  = "(2 if dtype == 'bf16' else 4) * LANES"
// PACK   = "'unsigned short' if BYTES == 2 else 'unsigned' if BYTES == 4 else 'uint2' if BYTES == 8 else 'uint4'"
// PACKS  = "c // lanes"
// PACKS2 = "c2 // lanes"
// H      = "h"
// W      = "w"
//
// [[launch]]
// kernel = "upsample_concat_backward_nhwc_vector"
// grid   = ["cdiv(n * h * w * (c // lanes), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["dout", "dlow", "dskip", "n"]
// ///
//
// A thread has four loads in flight, and each element of the joined gradient is read once; the channel only decides
// whether the four pixels are copied or added. Sizes are macros, so computing addresses costs multiplications instead
// of divisions. STREAM marks all three arrays evict-first in L2. Limit: HBM.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

typedef PACK Pack;  // the vector of one load or store

__device__ __forceinline__ float lane_of(const Pack& pack, int lane) {
    return (float)reinterpret_cast<const T*>(&pack)[lane];
}

__device__ __forceinline__ Pack load(const Pack* source) { return STREAM ? __ldcs(source) : *source; }

__device__ __forceinline__ void store(Pack* target, Pack pack) {
    if (STREAM) {
        __stcs(target, pack);
    } else {
        *target = pack;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    upsample_concat_backward_nhwc_vector(const Pack* __restrict__ dout, Pack* __restrict__ dlow,
                                         Pack* __restrict__ dskip, int n) {
    // dout [n][2 * H][2 * W][PACKS]; dlow [n][H][W][PACKS - PACKS2]; dskip [n][2 * H][2 * W][PACKS2]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (H * W * PACKS)) return;
    const unsigned pack = i % PACKS, pixel = i / PACKS;
    // the first of its four pixels, numbered through all images
    const size_t corner = (size_t)(pixel / W) * (4 * W) + pixel % W * 2;
    const size_t pixels[4] = {corner, corner + 1, corner + 2 * W, corner + 2 * W + 1};
    Pack v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = load(dout + pixels[k] * PACKS + pack);
    if (pack < PACKS2) {
#pragma unroll
        for (int k = 0; k < 4; ++k) store(dskip + pixels[k] * PACKS2 + pack, v[k]);
        return;
    }
    Pack result;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        const float upper = lane_of(v[0], lane) + lane_of(v[1], lane);
        const float lower = lane_of(v[2], lane) + lane_of(v[3], lane);
        reinterpret_cast<T*>(&result)[lane] = (T)(upper + lower);
    }
    store(dlow + (size_t)pixel * (PACKS - PACKS2) + pack - PACKS2, result);
}
