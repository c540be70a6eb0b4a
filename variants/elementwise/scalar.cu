// /// opbench
// title     = "one thread per element, flat grid: the element of b by division"
// mechanism = ["coalesced"]
// tune      = { BLOCK = [256, 128, 512] }
// requires  = ["elements <= 4294966272"]
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
//
// [[launch]]
// kernel = "elementwise_scalar"
// grid   = ["cdiv(elements, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["a", "b", "out", { u32 = "elements" }, "channels", "inner"]
// ///
//
// The first variant: operation and broadcast are compile-time macros, the sizes are not. Limits: with 4 bytes (2 in
// bf16) per access, too few bytes are in flight; broadcasting costs one or two integer divisions per element, about
// twenty instructions each.
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

extern "C" __global__ void elementwise_scalar(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ out,
                                              unsigned elements, int channels, int inner) {
    // a, out [outer][channels][inner], fewer than 2^32 elements; b: the same, channels, inner, 1 or [outer][inner]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= elements) return;
#if BROADCAST == 0
    const unsigned j = i;
#elif BROADCAST == 1
    const unsigned j = i / (unsigned)inner % (unsigned)channels;
#elif BROADCAST == 2
    const unsigned j = i % (unsigned)inner;
#elif BROADCAST == 4
    const unsigned j = i / ((unsigned)channels * inner) * inner + i % (unsigned)inner;
#else
    const unsigned j = 0;
#endif
    out[i] = (T)combine((float)a[i], (float)b[j]);
}
