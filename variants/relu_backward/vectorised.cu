// /// opbench
// title     = "16-byte accesses (4 floats or 8 bf16), UNROLL vectors in flight per thread"
// builds_on = "scalar"
// mechanism = ["coalesced", "vectorised_access", "unrolled"]
// tune      = { UNROLL = [1, 2, 4], BLOCK = [256, 128, 512], STREAM = [0, 1] }
// define    = { BF16 = "dtype == 'bf16'", LANES = "lanes" }
// supports  = { dtype = ["f32", "bf16"] }
//
// [[launch]]
// kernel = "relu_backward_vectorised"
// grid   = ["cdiv(n, BLOCK * UNROLL * LANES)"]
// block  = ["BLOCK"]
// ///
//
// Two loads of 16 bytes per thread keep 64 KB per multiprocessor in flight, with a quarter (in bf16 an eighth) of the
// instructions. Block 0 handles the elements after the last vector. STREAM marks all three arrays evict-first in L2.
// Limit: HBM. A mask of one bit per element, written by the forward pass, would save nearly a third of the bytes.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

__device__ __forceinline__ uint4 load(const T* source, unsigned i) {
#if STREAM
    return __ldcs(reinterpret_cast<const uint4*>(source) + i);
#else
    return reinterpret_cast<const uint4*>(source)[i];
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    relu_backward_vectorised(const T* __restrict__ out, const T* __restrict__ dout, T* __restrict__ dx, int n) {
    // out, dout, dx [n], all aligned to 16 bytes
    const unsigned first = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x, whole = (unsigned)n / LANES;
    uint4 value[UNROLL], gradient[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * BLOCK >= whole) break;
        value[u] = load(out, first + u * BLOCK);
        gradient[u] = load(dout, first + u * BLOCK);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * BLOCK >= whole) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            if (!((float)reinterpret_cast<const T*>(&value[u])[lane] > 0.0f)) {
                reinterpret_cast<T*>(&gradient[u])[lane] = (T)0.0f;
            }
        }
#if STREAM
        __stcs(reinterpret_cast<uint4*>(dx) + first + u * BLOCK, gradient[u]);
#else
        reinterpret_cast<uint4*>(dx)[first + u * BLOCK] = gradient[u];
#endif
    }
    const unsigned rest = LANES * whole + threadIdx.x;
    if (blockIdx.x == 0 && rest < (unsigned)n) dx[rest] = (float)out[rest] > 0.0f ? dout[rest] : (T)0.0f;
}
