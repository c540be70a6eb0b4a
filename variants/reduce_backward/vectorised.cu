// /// opbench
// title     = "16-byte accesses, UNROLL vectors per thread; sizes are compile-time constants"
// builds_on = "scalar"
// mechanism = ["coalesced", "vectorised_access", "unrolled", "flat_index", "compile_time_sizes"]
// tune      = { UNROLL = [2, 1, 4], BLOCK = [256, 512], STREAM = [0, 1] }
// requires  = ["elements <= 4294901760"]
//
// [supports]
// op    = ["sum", "mean", "l1", "l2"]
// dtype = ["f32", "bf16"]
//
// [define]
// BF16    = "dtype == 'bf16'"
// OP      = "1 if op == 'sum' else 2 if op == 'mean' else 3 if op == 'l1' else 4"
// AXIS    = "axis"
// LANES   = "lanes"
// BYTES   = "(2 if dtype == 'bf16' else 4) * LANES"
// PACK    = "'unsigned short' if BYTES == 2 else 'unsigned' if BYTES == 4 else 'uint2' if BYTES == 8 else 'uint4'"
// VECTORS = "elements // lanes"
// WIDTH   = "max(1, inner // lanes)"
// SHARED  = "inner == 1"
// RUN     = "axis * inner // lanes"
//
// [[launch]]
// kernel = "reduce_backward_vectorised"
// grid   = ["cdiv(VECTORS, BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// args   = ["x?", "out?", "dout", "dx"]
// ///
//
// Divisions by constant sizes become multiplications. Along rows, a vector of dx has one gradient, which neighbouring
// vectors read as well; across columns, each lane has its own. STREAM marks dx evict-first in L2. Limit: HBM, for sum
// and mean mainly writing.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
typedef PACK Pack;  // the vector of one load or store

// LANES elements of one access.
struct Vector {
    Pack raw;
    __device__ __forceinline__ T& lane(int i) { return reinterpret_cast<T*>(&raw)[i]; }
    __device__ __forceinline__ float value(int i) const { return (float)reinterpret_cast<const T*>(&raw)[i]; }
};

// Return the results that a vector of dx depends on: one result, copied to all lanes, or one for each lane.
__device__ __forceinline__ Vector results(const T* __restrict__ tensor, unsigned vector) {
    Vector loaded;
#if SHARED
    const T result = tensor[vector / RUN];
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) loaded.lane(lane) = result;
#else
    loaded.raw = reinterpret_cast<const Pack*>(tensor)[vector / RUN * WIDTH + vector % WIDTH];
#endif
    return loaded;
}

extern "C" __global__ void __launch_bounds__(BLOCK) reduce_backward_vectorised(
#if OP >= 3
    const T* __restrict__ x,
#endif
#if OP == 4
    const T* __restrict__ out,
#endif
    const T* __restrict__ dout, T* __restrict__ dx) {
    // x, dx: outer AXIS inner; out, dout: outer inner
    const unsigned first = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x;
    Vector gradient[UNROLL];
#if OP >= 3
    Vector element[UNROLL];
#endif
#if OP == 4
    Vector norm[UNROLL];
#endif
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned vector = first + u * BLOCK;
        if (vector >= VECTORS) break;
        gradient[u] = results(dout, vector);
#if OP >= 3
        element[u].raw = reinterpret_cast<const Pack*>(x)[vector];
#endif
#if OP == 4
        norm[u] = results(out, vector);
#endif
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned vector = first + u * BLOCK;
        if (vector >= VECTORS) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float slope = gradient[u].value(lane);
#if OP == 2
            gradient[u].lane(lane) = (T)(slope / AXIS);
#elif OP == 3
            const float value = element[u].value(lane);
            gradient[u].lane(lane) = (T)(value > 0.0f ? slope : value < 0.0f ? -slope : 0.0f);
#elif OP == 4
            const float root = norm[u].value(lane);
            gradient[u].lane(lane) = (T)(root == 0.0f ? 0.0f : element[u].value(lane) * (slope / root));
#endif
        }
        Pack* target = reinterpret_cast<Pack*>(dx) + vector;
        if (STREAM)
            __stcs(target, gradient[u].raw);
        else
            *target = gradient[u].raw;
    }
}
