// /// opbench
// title     = "UNROLL 16-byte vectors per thread and array; b is a vector or one element that is broadcast"
// builds_on = "grid_stride"
// mechanism = ["coalesced", "vectorised_access", "unrolled", "compile_time_sizes"]
// tune      = { UNROLL = [1, 2, 4], BLOCK = [256, 512], STREAM = [0, 1] }
// requires  = ["elements <= 4294901760"]
//
// [supports]
// op        = ["add", "sub", "mul", "div", "add_relu"]
// broadcast = ["none", "channel", "inner", "scalar", "outer_inner"]
// dtype     = ["f32", "bf16"]
//
// [define]
// BF16      = "dtype == 'bf16'"
// OP        = "1 if op == 'add' else 2 if op == 'sub' else 3 if op == 'mul' else 4 if op == 'div' else 5"
// BROADCAST = """0 if broadcast == 'none' else 1 if broadcast == 'channel' else 2 if broadcast == 'inner' \
//     else 3 if broadcast == 'scalar' else 4"""
// CHANNELS  = "channels"
// INNER     = "inner"
// LANES     = "lanes"
// BYTES     = "(2 if dtype == 'bf16' else 4) * LANES"
// PACK      = "'unsigned short' if BYTES == 2 else 'unsigned' if BYTES == 4 else 'uint2' if BYTES == 8 else 'uint4'"
//
// [[launch]]
// kernel = "elementwise_vectorised"
// grid   = ["cdiv(elements, lanes * BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// args   = ["a", "b", "out", { u32 = "elements" }]
// ///
//
// A load of 16 bytes of each array per thread keeps 64 KB per multiprocessor in flight at full occupancy. Along a
// broadcast axis, a vector never crosses into the next element of b, so b costs one load and one division by a constant
// per vector; the broadcast data stay in the caches. STREAM marks a and out evict-first in L2. Limit: HBM. If a size is
// not a multiple of a vector, accesses are narrower; without broadcasting, only the last elements are processed one by
// one.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
#if OP == 1
__device__ __forceinline__ float combine(float a, float b) { return a + b; }
#elif OP == 2
__device__ __forceinline__ float combine(float a, float b) { return a - b; }
#elif OP == 3
__device__ __forceinline__ float combine(float a, float b) { return a * b; }
#elif OP == 4
__device__ __forceinline__ float combine(float a, float b) { return a / b; }
#else
__device__ __forceinline__ float combine(float a, float b) { return fmaxf(a + b, 0.0f); }
#endif

typedef PACK Pack;  // the vector of one load or store
constexpr bool B_IS_VECTOR = BROADCAST == 0 || BROADCAST == 2 || BROADCAST == 4 || (BROADCAST == 1 && INNER == 1);

__device__ __forceinline__ unsigned place_in_b(unsigned i) {
#if BROADCAST == 0
    return i;
#elif BROADCAST == 1
    return i / INNER % CHANNELS;
#elif BROADCAST == 2
    return i % INNER;
#elif BROADCAST == 4
    return i / ((unsigned)CHANNELS * INNER) * INNER + i % INNER;
#else
    return 0;
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    elementwise_vectorised(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ out, unsigned elements) {
    // a, out [outer][CHANNELS][INNER]; b: the same, CHANNELS, INNER, 1 or [outer][INNER]; all aligned to 16 bytes
    const unsigned first = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x, whole = elements / LANES;
    Pack v[UNROLL], other[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= whole) break;
#if STREAM
        v[u] = __ldcs(reinterpret_cast<const Pack*>(a) + i);
#else
        v[u] = reinterpret_cast<const Pack*>(a)[i];
#endif
        const T* source = b + place_in_b(i * LANES);
        if (B_IS_VECTOR) {
            other[u] = *reinterpret_cast<const Pack*>(source);
        } else {
            *reinterpret_cast<T*>(&other[u]) = *source;
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= whole) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            T& element = reinterpret_cast<T*>(&v[u])[lane];
            element = (T)combine((float)element, (float)reinterpret_cast<const T*>(&other[u])[B_IS_VECTOR ? lane : 0]);
        }
#if STREAM
        __stcs(reinterpret_cast<Pack*>(out) + i, v[u]);
#else
        reinterpret_cast<Pack*>(out)[i] = v[u];
#endif
    }
    const unsigned rest = whole * LANES + threadIdx.x;
    if (blockIdx.x == 0 && threadIdx.x < LANES && rest < elements) {
        out[rest] = (T)combine((float)a[rest], (float)b[place_in_b(rest)]);
    }
}
