// /// opbench
// title     = "nhwc: 16-byte accesses along the channels; scale and shift stay in registers for UNROLL pixels"
// builds_on = "flat_divmod"
// mechanism = ["coalesced", "vectorised_access", "unrolled", "compile_time_sizes"]
// tune      = { UNROLL = [4, 2, 8, 1], BLOCK = [256, 128], STREAM = [0, 1] }
// supports  = { layout = ["nhwc"], dtype = ["f32", "bf16"], epilogue = ["none", "relu"] }
// requires  = ["cdiv(n * h * w, UNROLL) * (c // lanes) <= 4294966272"]
//
// [define]
// BF16  = "dtype == 'bf16'"
// RELU  = "epilogue == 'relu'"
// LANES = "lanes"
// BYTES = "(2 if dtype == 'bf16' else 4) * LANES"
// PACK  = "'unsigned short' if BYTES == 2 else 'unsigned' if BYTES == 4 else 'uint2' if BYTES == 8 else 'uint4'"
// C     = "c"
//
// [[launch]]
// kernel = "batchnorm2d_nhwc_vector"
// grid   = ["cdiv(cdiv(n * h * w, UNROLL) * (c // lanes), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "scale", "shift", "mean", "variance", "out", "n * h * w"]
// ///
//
// A thread always processes the same vector of channels. So it computes factors and offsets once, in registers, for
// UNROLL pixels, whose loads are already in flight. From one of its pixels to the next, the thread moves on by a fixed
// part of all pixels, so the loads of a warp stay contiguous whatever the number of channels is. STREAM marks x and out
// evict-first in L2. Limit: HBM.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int PACKS = C / LANES;  // vectors of a pixel
typedef PACK Pack;                // the vector of one load or store

__device__ __forceinline__ Pack load(const Pack* source) { return STREAM ? __ldcs(source) : *source; }

__device__ __forceinline__ void store(Pack* target, Pack pack) {
    if (STREAM) {
        __stcs(target, pack);
    } else {
        *target = pack;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    batchnorm2d_nhwc_vector(const Pack* __restrict__ x, const Pack* __restrict__ scale, const Pack* __restrict__ shift,
                            const Pack* __restrict__ mean, const Pack* __restrict__ variance, Pack* __restrict__ out,
                            unsigned pixels) {
    // x, out [pixels][PACKS]; the others [PACKS]
    const unsigned groups = (pixels + UNROLL - 1) / UNROLL;
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= groups * PACKS) return;
    // first: the thread's first pixel; then every groups-th pixel after it
    const unsigned pack = i % PACKS, first = i / PACKS;
    Pack v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * groups < pixels) v[u] = load(x + i + (size_t)u * groups * PACKS);
    }
    float factor[LANES], offset[LANES];
    const Pack four[4] = {scale[pack], shift[pack], mean[pack], variance[pack]};
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        float number[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) number[k] = (float)reinterpret_cast<const T*>(&four[k])[lane];
        factor[lane] = number[0] * rsqrtf(number[3] + 1e-5f);
        offset[lane] = number[1] - number[2] * factor[lane];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * groups >= pixels) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            T& element = reinterpret_cast<T*>(&v[u])[lane];
            float value = (float)element * factor[lane] + offset[lane];
#if RELU
            value = fmaxf(value, 0.0f);
#endif
            element = (T)value;
        }
        store(out + i + (size_t)u * groups * PACKS, v[u]);
    }
}
