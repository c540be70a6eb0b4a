// /// opbench
// title    = "one thread per element"
// mechanism = ["coalesced"]
// tune     = { BLOCK = [256, 128, 512, 1024] }
// define   = { BF16 = "dtype == 'bf16'" }
// supports = { dtype = ["f32", "bf16"] }
//
// [[launch]]
// kernel = "relu_backward_scalar"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant: neighbouring threads access neighbouring elements, with two loads and a store each. The mask comes
// from the ReLU's output, which the next layer keeps anyway, and never from its input. Limit: latency, as in
// relu/scalar.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void relu_backward_scalar(const T* __restrict__ out, const T* __restrict__ dout,
                                                T* __restrict__ dx, int n) {
    // out, dout, dx [n]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;  // unsigned: indices of the last block can exceed 2^31
    if (i < (unsigned)n) dx[i] = (float)out[i] > 0.0f ? dout[i] : (T)0.0f;
}
