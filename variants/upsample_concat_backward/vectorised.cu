// /// opbench
// title     = "16-byte accesses: one vector in two rows per thread, copied or added; no division"
// builds_on = "flat_divmod"
// mechanism = ["coalesced", "vectorised_access", "unrolled", "compile_time_sizes"]
// tune      = { UNROLL = [1, 2], BLOCK = [256, 128, 512], STREAM = [0, 1] }
// supports  = { dtype = ["f32", "bf16"] }
// requires  = ["n * (c1 + c2) * h * (2 * w // lanes) <= 4294966272"]
//
// [define]
// BF16    = "dtype == 'bf16'"
// LANES   = "lanes"
// BYTES   = "(2 if dtype == 'bf16' else 4) * LANES"
// PACK    = "'unsigned short' if BYTES == 2 else 'unsigned' if BYTES == 4 else 'uint2' if BYTES == 8 else 'uint4'"
// HALF    = "'unsigned short' if BYTES == 4 else 'unsigned' if BYTES == 8 else 'uint2'"
// C       = "c"
// C2      = "c2"
// H       = "h"
// VECTORS = "2 * w // lanes"
//
// [[launch]]
// kernel = "upsample_concat_backward_vectorised"
// grid   = ["cdiv(n * c * h * (2 * w // lanes), BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// args   = ["dout", "dlow", "dskip", "n"]
// ///
//
// Every thread reads rows 2y and 2y + 1 of the joined gradient in the same way, each element once; only the writes
// depend on the channel. Sizes are macros, so indices cost multiplications instead of divisions. STREAM marks all three
// arrays evict-first. Limit: HBM.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

typedef PACK Pack;  // what one load or store moves
typedef HALF Half;  // a row's width is even: a vector has two elements at least

__device__ __forceinline__ float lane_of(const Pack& pack, int lane) {
    return (float)reinterpret_cast<const T*>(&pack)[lane];
}

__device__ __forceinline__ Pack load(const Pack* source) { return STREAM ? __ldcs(source) : *source; }

template <class Value>
__device__ __forceinline__ void store(Value* target, Value value) {
    if (STREAM) {
        __stcs(target, value);
    } else {
        *target = value;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    upsample_concat_backward_vectorised(const Pack* __restrict__ dout, Half* __restrict__ dlow,
                                        Pack* __restrict__ dskip, int n) {
    // dout [n][C][2 * H][VECTORS]; dlow [n][C - C2][H][VECTORS]; dskip [n][C2][2 * H][VECTORS]
    const unsigned all = (unsigned)n * (C * H * VECTORS), first = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x;
    Pack above[UNROLL], below[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= all) break;
        const size_t at = (size_t)(i / VECTORS) * (2 * VECTORS) + i % VECTORS;
        above[u] = load(dout + at);
        below[u] = load(dout + at + VECTORS);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= all) break;
        const unsigned vector = i % VECTORS, row = i / VECTORS % H, channel = i / VECTORS / H % C;
        const size_t image = i / VECTORS / H / C;
        if (channel < C2) {
            Pack* target = dskip + ((image * C2 + channel) * H + row) * (2 * VECTORS) + vector;
            store(target, above[u]);
            store(target + VECTORS, below[u]);
            continue;
        }
        Half result;
#pragma unroll
        for (int k = 0; k < LANES / 2; ++k) {
            const float upper = lane_of(above[u], 2 * k) + lane_of(above[u], 2 * k + 1);
            const float lower = lane_of(below[u], 2 * k) + lane_of(below[u], 2 * k + 1);
            reinterpret_cast<T*>(&result)[k] = (T)(upper + lower);
        }
        store(dlow + ((image * (C - C2) + channel - C2) * H + row) * VECTORS + vector, result);
    }
}
