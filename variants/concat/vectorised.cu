// /// opbench
// title     = "16-byte accesses, UNROLL vectors per thread; sizes are compile-time constants, so division is cheap"
// builds_on = "runs"
// mechanism = ["coalesced", "vectorised_access", "unrolled"]
// tune      = { UNROLL = [1, 2, 4], BLOCK = [256, 512], STREAM = [0, 1] }
// supports  = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
// requires  = ["cdiv(outer * (run1 + run2) // lanes, BLOCK * UNROLL) * BLOCK * UNROLL <= 4294967295"]
//
// [define]
// BF16  = "dtype == 'bf16'"
// LANES = "lanes"
// BYTES = "(2 if dtype == 'bf16' else 4) * LANES"
// PACK  = "'unsigned short' if BYTES == 2 else 'unsigned' if BYTES == 4 else 'uint2' if BYTES == 8 else 'uint4'"
// RUN1  = "run1"
// RUN2  = "run2"
//
// [[launch]]
// kernel = "concat_vectorised"
// grid   = ["cdiv(outer * (run1 + run2) // lanes, BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// args   = ["a", "b", "out", { u32 = "outer * (run1 + run2) // lanes" }]
// ///
//
// A thread copies the longest vector of up to 16 bytes that divides both runs. No thread is idle, however short the
// runs are, and the division of the flat index costs one multiplication and a shift. STREAM marks loads and stores
// evict-first in L2. Limit: HBM. Runs of odd length need narrower accesses.
#if BF16
typedef unsigned short T;
#else
typedef float T;
#endif
constexpr unsigned FIRST = RUN1 / LANES, SECOND = RUN2 / LANES, BOTH = FIRST + SECOND;  // vectors of a run
typedef PACK Pack;  // the vector of one load or store

__device__ __forceinline__ Pack load(const Pack* source) { return STREAM ? __ldcs(source) : *source; }

__device__ __forceinline__ void store(Pack* target, Pack pack) {
    if (STREAM) {
        __stcs(target, pack);
    } else {
        *target = pack;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    concat_vectorised(const Pack* __restrict__ a, const Pack* __restrict__ b, Pack* __restrict__ out,
                      unsigned vectors) {
    // a [outer][FIRST]; b [outer][SECOND]; out: vectors = outer * BOTH
    const unsigned first = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x;
    Pack v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK, k = i / BOTH, place = i % BOTH;
        if (i >= vectors) break;
        v[u] = load(place < FIRST ? a + ((size_t)k * FIRST + place) : b + ((size_t)k * SECOND + (place - FIRST)));
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= vectors) break;
        store(out + i, v[u]);
    }
}
