// /// opbench
// title     = "grid-stride loop, with as many blocks as the GPU runs at once; sizes are compile-time constants"
// builds_on = "scalar"
// mechanism = ["coalesced", "compile_time_sizes", "grid_stride"]
// tune      = { BLOCK = [256, 512], BLOCKS_PER_SM = [8, 4] }
// requires  = ["elements <= 2147483647"]
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
// CHANNELS  = "channels"
// INNER     = "inner"
//
// [[launch]]
// kernel = "elementwise_grid_stride"
// grid   = ["min(cdiv(elements, BLOCK), BLOCKS_PER_SM * sm_count)"]
// block  = ["BLOCK"]
// args   = ["a", "b", "out", "elements"]
// ///
//
// Blocks start once, and the loads of several iterations can be in flight together. Divisions by constants become a
// multiplication and a shift. Limit: still one element per access.
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

extern "C" __global__ void __launch_bounds__(BLOCK)
    elementwise_grid_stride(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ out, unsigned elements) {
    // a, out [outer][CHANNELS][INNER], fewer than 2^31 elements; b: the same, CHANNELS, INNER, 1 or [outer][INNER]
#pragma unroll 4
    for (unsigned i = blockIdx.x * BLOCK + threadIdx.x; i < elements; i += gridDim.x * BLOCK) {
#if BROADCAST == 0
        const unsigned j = i;
#elif BROADCAST == 1
        const unsigned j = i / INNER % CHANNELS;
#elif BROADCAST == 2
        const unsigned j = i % INNER;
#elif BROADCAST == 4
        const unsigned j = i / ((unsigned)CHANNELS * INNER) * INNER + i % INNER;
#else
        const unsigned j = 0;
#endif
        out[i] = (T)combine((float)a[i], (float)b[j]);
    }
}
