// /// opbench
// title     = "16-byte accesses, UNROLL vectors of all arrays in flight per thread"
// builds_on = "scalar"
// mechanism = ["coalesced", "vectorised_access", "unrolled"]
// tune      = { BLOCK = [256, 128, 512], UNROLL = [2, 1, 4], STREAM = [0, 1] }
// define    = { MOMENTUM = "momentum == 'yes'", COPY = "copy == 'bf16'" }
// supports  = { momentum = ["no", "yes"], copy = ["none", "bf16"] }
//
// [[launch]]
// kernel = "sgd_vectorised"
// grid   = ["cdiv(n, 4 * BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// args   = ["parameter", "gradient", "velocity?", "rates", "hyper", "new_parameter", "new_velocity?", "stored?", "n"]
// ///
//
// A quarter of the load and store instructions; a thread issues all its loads before it computes. STREAM marks
// parameters and velocities evict-first in L2. Limit: HBM, three arrays, with momentum five.
#if COPY
#include <cuda_bf16.h>
#endif

struct Rates { float lr, factor, mu, decay; };

// Update one element in place.
__device__ __forceinline__ void update(float& p, float g, float& velocity, const Rates& rates) {
    float change = rates.factor * g + rates.decay * p;
#if MOMENTUM
    change += rates.mu * velocity;
    velocity = change;
#endif
    p -= rates.lr * change;
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
    sgd_vectorised(const float* parameter, const float* __restrict__ gradient,
#if MOMENTUM
                   const float* velocity,
#endif
                   const float* __restrict__ rate, const float* __restrict__ hyper, float* new_parameter,
#if MOMENTUM
                   float* new_velocity,
#endif
#if COPY
                   __nv_bfloat16* __restrict__ stored,
#endif
                   int n) {
    // all [n], aligned to 16 bytes; rate, hyper [4]
    const Rates rates = {rate[0], rate[3], hyper[0], hyper[3]};
    const unsigned first = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x;
    const unsigned whole = (unsigned)n / 4;
    float4 p[UNROLL], g[UNROLL], v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= whole) break;
        p[u] = load(parameter, i);
        g[u] = reinterpret_cast<const float4*>(gradient)[i];
#if MOMENTUM
        v[u] = load(velocity, i);
#endif
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= whole) break;
        update(p[u].x, g[u].x, v[u].x, rates);
        update(p[u].y, g[u].y, v[u].y, rates);
        update(p[u].z, g[u].z, v[u].z, rates);
        update(p[u].w, g[u].w, v[u].w, rates);
        store(new_parameter, i, p[u]);
#if MOMENTUM
        store(new_velocity, i, v[u]);
#endif
#if COPY
        __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(p[u].x, p[u].y), __floats2bfloat162_rn(p[u].z, p[u].w)};
        reinterpret_cast<uint2*>(stored)[i] = *reinterpret_cast<uint2*>(pair);
#endif
    }
    const unsigned rest = 4 * whole + threadIdx.x;  // block 0 handles elements after the last vector
    if (blockIdx.x == 0 && threadIdx.x < 4 && rest < (unsigned)n) {
        float p = parameter[rest], v = 0.0f;
#if MOMENTUM
        v = velocity[rest];
#endif
        update(p, gradient[rest], v, rates);
        new_parameter[rest] = p;
#if MOMENTUM
        new_velocity[rest] = v;
#endif
#if COPY
        stored[rest] = __float2bfloat16_rn(p);
#endif
    }
}
