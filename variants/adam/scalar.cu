// /// opbench
// title    = "one thread per element"
// mechanism = ["coalesced"]
// tune     = { BLOCK = [256, 128, 512] }
// supports = { decay = ["none", "coupled", "decoupled"], copy = ["none", "bf16"] }
//
// [define]
// COUPLED   = "decay == 'coupled'"
// DECOUPLED = "decay == 'decoupled'"
// COPY      = "copy == 'bf16'"
//
// [[launch]]
// kernel = "adam_scalar"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// args   = [
//     "parameter", "gradient", "moment1", "moment2", "rates", "hyper", "new_parameter", "new_moment1", "new_moment2",
//     "stored?", "n",
// ]
// ///
//
// The first variant: the formula of a framework as one kernel; as separate operations, every array would be read and
// written several times. One launch updates a whole network if its parameters are in one array. Rates are read from
// memory, so the launch is the same in every step. Limit: 4 bytes per access, and address arithmetic for seven arrays
// per element.
#if COPY
#include <cuda_bf16.h>
#endif

// Each element is read before it is written, by the same thread, so the new arrays may be the old ones.
extern "C" __global__ void adam_scalar(const float* parameter, const float* __restrict__ gradient, const float* moment1,
                                       const float* moment2, const float* __restrict__ rates,
                                       const float* __restrict__ hyper, float* new_parameter, float* new_moment1,
                                       float* new_moment2,
#if COPY
                                       __nv_bfloat16* __restrict__ stored,
#endif
                                       int n) {
    // all [n]; rates, hyper [4]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n) return;
    const float lr = rates[0], c1 = rates[1], c2 = rates[2], factor = rates[3];
    const float b1 = hyper[0], b2 = hyper[1], eps = hyper[2];
    float p = parameter[i], g = factor * gradient[i];
#if COUPLED
    g += hyper[3] * p;
#endif
    const float m = b1 * moment1[i] + (1.0f - b1) * g, v = b2 * moment2[i] + (1.0f - b2) * g * g;
#if DECOUPLED
    p -= lr * hyper[3] * p;
#endif
    p -= lr * (m * c1) / (sqrtf(v * c2) + eps);
    new_parameter[i] = p;
    new_moment1[i] = m;
    new_moment2[i] = v;
#if COPY
    stored[i] = __float2bfloat16_rn(p);
#endif
}
