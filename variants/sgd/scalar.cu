// /// opbench
// title    = "one thread per element"
// mechanism = ["coalesced"]
// tune     = { BLOCK = [256, 128, 512] }
// define   = { MOMENTUM = "momentum == 'yes'", COPY = "copy == 'bf16'" }
// supports = { momentum = ["no", "yes"], copy = ["none", "bf16"] }
//
// [[launch]]
// kernel = "sgd_scalar"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["parameter", "gradient", "velocity?", "rates", "hyper", "new_parameter", "new_velocity?", "stored?", "n"]
// ///
//
// The first variant: decay, momentum and step in one kernel; as separate operations, every array would be read and
// written several times. Rates are read from memory, so the launch is the same in every step. Limit: 4 bytes per
// access.
#if COPY
#include <cuda_bf16.h>
#endif

// Each element is read before it is written, by the same thread, so the new arrays may be the old ones.
extern "C" __global__ void sgd_scalar(const float* parameter, const float* __restrict__ gradient,
#if MOMENTUM
                                      const float* velocity,
#endif
                                      const float* __restrict__ rates, const float* __restrict__ hyper,
                                      float* new_parameter,
#if MOMENTUM
                                      float* new_velocity,
#endif
#if COPY
                                      __nv_bfloat16* __restrict__ stored,
#endif
                                      int n) {
    // all [n]; rates, hyper [4]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n) return;
    const float p = parameter[i];
    float change = rates[3] * gradient[i] + hyper[3] * p;
#if MOMENTUM
    change += hyper[0] * velocity[i];
    new_velocity[i] = change;
#endif
    const float result = p - rates[0] * change;
    new_parameter[i] = result;
#if COPY
    stored[i] = __float2bfloat16_rn(result);
#endif
}
