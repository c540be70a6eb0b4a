// /// opbench
// title     = "bf16: 16-byte accesses, packed maximum of two elements, UNROLL vectors in flight per thread"
// builds_on = "vec4_unrolled"
// mechanism = ["coalesced", "vectorised_access", "unrolled"]
// tune      = { UNROLL = [2, 1, 4], BLOCK = [256, 512], STREAM = [0, 1] }
// supports  = { dtype = ["bf16"] }
//
// [[launch]]
// kernel = "relu_bf16_vectorised"
// grid   = ["cdiv(n, 8 * BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// ///
//
// As in vec4_unrolled, a thread has UNROLL x 16 bytes in flight; a vector has eight bf16 elements instead of four
// floats. One instruction compares two elements, so an element needs half the instructions. A network reads its
// activations again soon, so they stay in L2 unless STREAM marks them evict-first. Block 0 handles the last n % 8
// elements. Limit: HBM.
#include <cuda_bf16.h>

__device__ __forceinline__ unsigned larger(unsigned pair) {
    __nv_bfloat162 both = *reinterpret_cast<__nv_bfloat162*>(&pair);
    both = __hmax2(both, __float2bfloat162_rn(0.0f));
    return *reinterpret_cast<unsigned*>(&both);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    relu_bf16_vectorised(const __nv_bfloat16* __restrict__ x, __nv_bfloat16* __restrict__ out, int n) {
    // x, out [n], both aligned to 16 bytes
    const unsigned first = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x, whole = (unsigned)n / 8;
    const uint4* source = reinterpret_cast<const uint4*>(x);
    uint4* target = reinterpret_cast<uint4*>(out);
    uint4 v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * BLOCK < whole) v[u] = STREAM ? __ldcs(source + first + u * BLOCK) : source[first + u * BLOCK];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * BLOCK >= whole) break;
        v[u] = make_uint4(larger(v[u].x), larger(v[u].y), larger(v[u].z), larger(v[u].w));
        if (STREAM) {
            __stcs(target + first + u * BLOCK, v[u]);
        } else {
            target[first + u * BLOCK] = v[u];
        }
    }
    const unsigned rest = 8 * whole + threadIdx.x;
    if (blockIdx.x == 0 && rest < (unsigned)n) out[rest] = __hmax(x[rest], __float2bfloat16(0.0f));
}
