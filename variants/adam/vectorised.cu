// /// opbench
// title     = "16-byte accesses, UNROLL vectors of all four arrays in flight per thread"
// builds_on = "scalar"
// mechanism = ["coalesced", "vectorised_access", "unrolled"]
// tune      = { BLOCK = [256, 128, 512], UNROLL = [1, 2, 4], STREAM = [0, 1] }
// supports  = { decay = ["none", "coupled", "decoupled"], copy = ["none", "bf16"] }
//
// [define]
// COUPLED   = "decay == 'coupled'"
// DECOUPLED = "decay == 'decoupled'"
// COPY      = "copy == 'bf16'"
//
// [[launch]]
// kernel = "adam_vectorised"
// grid   = ["cdiv(n, 4 * BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// args   = [
//     "parameter", "gradient", "moment1", "moment2", "rates", "hyper", "new_parameter", "new_moment1", "new_moment2",
//     "stored?", "n",
// ]
// ///
//
// A quarter of the load and store instructions; a thread issues 4 x UNROLL loads of 16 bytes before it computes. The
// copy in bf16 costs 2 bytes per element in addition to 28; a separate pass would read the parameters again. STREAM
// marks parameters and moments evict-first in L2, because nothing reads the moments before the next step, and the parameters not before the next forward pass. Limit: HBM,
// seven arrays; square root and division take less time than the memory accesses.
#if COPY
#include <cuda_bf16.h>
#endif

struct Rates { float lr, c1, c2, factor, b1, b2, eps, decay; };

// Update one element in place.
__device__ __forceinline__ void update(float& p, float g, float& m, float& v, const Rates& rates) {
    g *= rates.factor;
#if COUPLED
    g += rates.decay * p;
#endif
    m = rates.b1 * m + (1.0f - rates.b1) * g;
    v = rates.b2 * v + (1.0f - rates.b2) * g * g;
#if DECOUPLED
    p -= rates.lr * rates.decay * p;
#endif
    p -= rates.lr * (m * rates.c1) / (sqrtf(v * rates.c2) + rates.eps);
}

__device__ __forceinline__ float4 load(const float* array, unsigned vector) {
    const float4* vectors = reinterpret_cast<const float4*>(array);
    return STREAM ? __ldcs(vectors + vector) : vectors[vector];
}

__device__ __forceinline__ void store(float* array, unsigned vector, float4 value) {
    float4* vectors = reinterpret_cast<float4*>(array);
    if (STREAM) {
        __stcs(vectors + vector, value);
    } else {
        vectors[vector] = value;
    }
}

// Each element is read before it is written, by the same thread, so the new arrays may be the old ones.
extern "C" __global__ void __launch_bounds__(BLOCK)
    adam_vectorised(const float* parameter, const float* __restrict__ gradient, const float* moment1,
                    const float* moment2, const float* __restrict__ rate, const float* __restrict__ hyper,
                    float* new_parameter, float* new_moment1, float* new_moment2,
#if COPY
                    __nv_bfloat16* __restrict__ stored,
#endif
                    int n) {
    // all [n], aligned to 16 bytes; rate, hyper [4]
    const Rates rates = {rate[0], rate[1], rate[2], rate[3], hyper[0], hyper[1], hyper[2], hyper[3]};
    const unsigned first = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x;
    const unsigned whole = (unsigned)n / 4;
    float4 p[UNROLL], g[UNROLL], m[UNROLL], v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= whole) break;
        p[u] = load(parameter, i);
        g[u] = reinterpret_cast<const float4*>(gradient)[i];
        m[u] = load(moment1, i);
        v[u] = load(moment2, i);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= whole) break;
        update(p[u].x, g[u].x, m[u].x, v[u].x, rates);
        update(p[u].y, g[u].y, m[u].y, v[u].y, rates);
        update(p[u].z, g[u].z, m[u].z, v[u].z, rates);
        update(p[u].w, g[u].w, m[u].w, v[u].w, rates);
        store(new_parameter, i, p[u]);
        store(new_moment1, i, m[u]);
        store(new_moment2, i, v[u]);
#if COPY
        __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(p[u].x, p[u].y), __floats2bfloat162_rn(p[u].z, p[u].w)};
        reinterpret_cast<uint2*>(stored)[i] = *reinterpret_cast<uint2*>(pair);
#endif
    }
    const unsigned rest = 4 * whole + threadIdx.x;  // block 0 handles elements after the last vector
    if (blockIdx.x == 0 && threadIdx.x < 4 && rest < (unsigned)n) {
        float p = parameter[rest], m = moment1[rest], v = moment2[rest];
        update(p, gradient[rest], m, v, rates);
        new_parameter[rest] = p;
        new_moment1[rest] = m;
        new_moment2[rest] = v;
#if COPY
        stored[rest] = __float2bfloat16_rn(p);
#endif
    }
}
