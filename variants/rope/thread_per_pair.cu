// /// opbench
// title     = "one thread per pair of elements, with one cosine and one sine"
// mechanism = ["coalesced"]
// tune      = { BLOCK = [256, 128, 512] }
// supports  = { pairs = ["halves", "neighbours"], direction = ["forward", "backward"], dtype = ["f32", "bf16"] }
//
// [define]
// BF16     = "dtype == 'bf16'"
// HALVES   = "pairs == 'halves'"
// BACKWARD = "direction == 'backward'"
//
// [[launch]]
// kernel = "rope_thread_per_pair"
// grid   = ["cdiv(batch * tokens * heads * half, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "cos", "sin", "out", "batch * tokens * heads * half", "tokens", "heads", "half"]
// ///
//
// The first variant. Limit: the divisions that compute a pair's token, and accesses of one element each; if pairs are
// neighbouring elements, the two accesses of a warp use the same sectors.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// x, out [batch][tokens][heads][2 * half]; cos, sin [tokens][half]
extern "C" __global__ void __launch_bounds__(BLOCK)
    rope_thread_per_pair(const T* __restrict__ x, const float* __restrict__ cos, const float* __restrict__ sin,
                         T* __restrict__ out, long long pairs, int tokens, int heads, int half) {
    const long long pair = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (pair >= pairs) return;
    const long long head = pair / half;
    const int i = (int)(pair % half), token = (int)(head / heads % tokens);
    const size_t at = (size_t)token * half + i;
    const size_t first = (size_t)head * 2 * half + (HALVES ? i : 2 * i), second = first + (HALVES ? half : 1);
    const float c = cos[at], s = BACKWARD ? -sin[at] : sin[at];
    const float a = (float)x[first], b = (float)x[second];
    out[first] = (T)(a * c - b * s);
    out[second] = (T)(b * c + a * s);
}
