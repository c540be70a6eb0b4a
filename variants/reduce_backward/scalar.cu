// /// opbench
// title     = "one thread per element, flat grid: the output by division"
// mechanism = ["coalesced", "flat_index"]
// tune      = { BLOCK = [256, 128, 512] }
// requires  = ["elements <= 4294966272"]
//
// [supports]
// op    = ["sum", "mean", "l1", "l2"]
// dtype = ["f32", "bf16"]
//
// [define]
// BF16 = "dtype == 'bf16'"
// OP   = "1 if op == 'sum' else 2 if op == 'mean' else 3 if op == 'l1' else 4"
//
// [[launch]]
// kernel = "reduce_backward_scalar"
// grid   = ["cdiv(elements, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x?", "out?", "dout", "dx", { u32 = "elements" }, "axis", "inner"]
// ///
//
// The first variant: the definition. Limits: every thread needs three integer divisions, and with 4 bytes (2 in bf16)
// per access too few bytes are in flight.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void reduce_backward_scalar(
#if OP >= 3
    const T* __restrict__ x,
#endif
#if OP == 4
    const T* __restrict__ out,
#endif
    const T* __restrict__ dout, T* __restrict__ dx, unsigned elements, int axis, int inner) {
    // x, dx: outer axis inner; out, dout: outer inner
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= elements) return;
    const unsigned column = i % (unsigned)inner, outer = i / (unsigned)inner / (unsigned)axis;
    const unsigned result = outer * inner + column;
    const float gradient = (float)dout[result];
#if OP == 1
    dx[i] = dout[result];
#elif OP == 2
    dx[i] = (T)(gradient / axis);
#elif OP == 3
    const float value = (float)x[i];
    dx[i] = (T)(value > 0.0f ? gradient : value < 0.0f ? -gradient : 0.0f);
#else
    const float norm = (float)out[result];
    dx[i] = (T)(norm == 0.0f ? 0.0f : (float)x[i] * (gradient / norm));
#endif
}
