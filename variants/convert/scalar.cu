// /// opbench
// title    = "one thread per element"
// mechanism = ["coalesced"]
// tune     = { BLOCK = [256, 128, 512] }
// define   = { NARROW = "to == 'bf16'" }
// supports = { to = ["bf16", "f32"] }
//
// [[launch]]
// kernel = "convert_scalar"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant: contiguous accesses. Limit: with 4 bytes on one side and 2 on the other per thread, too few bytes
// are in flight.
#include <cuda_bf16.h>
#if NARROW
typedef float Source;
typedef __nv_bfloat16 Target;
#else
typedef __nv_bfloat16 Source;
typedef float Target;
#endif

extern "C" __global__ void convert_scalar(const Source* __restrict__ x, Target* __restrict__ out, int n) {
    // x, out [n]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < (unsigned)n) out[i] = (Target)(float)x[i];
}
