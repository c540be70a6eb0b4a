// /// opbench
// title     = "online softmax: one warp per query, one pass over the keys; each new maximum rescales the result"
// builds_on = "three_kernels"
// mechanism = ["coalesced", "warp_shuffle", "fewer_passes", "compile_time_sizes"]
// tune      = { WARPS = [4, 8, 2] }
// define.BF16   = "dtype == 'bf16'"
// define.CAUSAL = "mask == 'causal'"
// define.DEPTH  = "depth"
// define.QUERY_STRIDE = "query_stride"
// define.KEY_STRIDE   = "key_stride"
// define.OUT_STRIDE   = "out_stride"
// define.PART_STRIDE  = "part_stride"
// define.STATISTICS   = "statistics == 'logsumexp'"
// supports.mask   = ["none", "causal"]
// supports.dtype  = ["f32", "bf16"]
// supports.layout = ["heads", "tokens", "qkv"]
// supports.statistics = ["none", "logsumexp"]
// requires  = [
//     "depth <= 256", "batch <= 65535 and heads <= 65535",
//     "query_batch_stride < 2 ** 32 and key_batch_stride < 2 ** 32",
// ]
//
// [[launch]]
// kernel = "attention_online"
// grid   = ["cdiv(queries, WARPS)", "heads", "batch"]
// block  = [32, "WARPS"]
// args   = [
//     "q?", "k?", "v?", "qkv?", "qkv?", "qkv?", "out", "logsumexp?",
//     { struct = [{ u32 = "query_batch_stride" }, { u32 = "query_head_stride" }] },
//     { struct = [{ u32 = "key_batch_stride" }, { u32 = "key_head_stride" }] },
//     { struct = [{ u32 = "out_batch_stride" }, { u32 = "query_head_stride" }] },
//     "heads // kv_heads", "queries", "keys",
// ]
// ///
//
// The lanes of a warp hold one query and its average. For each key, five shuffles add up the score; then the value's
// row is added with the exponential of the score as its weight. Neither scores nor weights are stored. Limit: every
// query reads all keys and values from the L1 or L2 cache, and for each key five shuffles depend on one another. Idea:
// Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int ITEMS = (DEPTH + 31) / 32;

// Elements from one sequence, and from one head, to the next.
struct Strides { unsigned batch, head; };

// q, k, v and out consist of rows of DEPTH elements. From one token to the next there are QUERY_STRIDE (q), KEY_STRIDE
// (k and v) or OUT_STRIDE (out) elements. In one packed array, the keys of a token begin PART_STRIDE elements after its
// queries, and its values PART_STRIDE elements after its keys. logsumexp [batch][heads][queries]
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    attention_online(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ out,
#if STATISTICS
                     float* __restrict__ logsumexp,
#endif
                     Strides q_strides, Strides k_strides, Strides out_strides, int heads_per_kv_head, int queries,
                     int keys) {
    const int query = blockIdx.x * WARPS + threadIdx.y, lane = threadIdx.x;
    const unsigned sequence = blockIdx.z, head = blockIdx.y;
    if (query >= queries) return;  // true for whole warps only, so shuffles stay safe
    q += (size_t)sequence * q_strides.batch + (size_t)head * q_strides.head + (size_t)query * QUERY_STRIDE;
    const size_t kv_offset = (size_t)sequence * k_strides.batch + (size_t)(head / heads_per_kv_head) * k_strides.head;
    k += kv_offset + PART_STRIDE, v += kv_offset + 2 * PART_STRIDE;
    out += (size_t)sequence * out_strides.batch + (size_t)head * out_strides.head + (size_t)query * OUT_STRIDE;
    const int key_end = CAUSAL ? query + keys - queries + 1 : keys;
    float row[ITEMS], accumulator[ITEMS] = {};
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int d = i * 32 + lane;
        row[i] = d < DEPTH ? (float)q[d] * rsqrtf((float)DEPTH) : 0.0f;
    }
    float running_maximum = __int_as_float(0xff800000), sum = 0.0f;  // -infinity
    for (int key = 0; key < key_end; ++key) {
        const size_t at = (size_t)key * KEY_STRIDE + lane;
        float score = 0.0f;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (i * 32 + lane < DEPTH) score += row[i] * (float)k[at + i * 32];
#pragma unroll
        for (int step = 16; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffffu, score, step);
        const float previous_maximum = running_maximum;
        running_maximum = fmaxf(running_maximum, score);
        const float factor = __expf(previous_maximum - running_maximum), weight = __expf(score - running_maximum);
        sum = sum * factor + weight;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (i * 32 + lane < DEPTH) accumulator[i] = accumulator[i] * factor + weight * (float)v[at + i * 32];
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
        if (i * 32 + lane < DEPTH) out[i * 32 + lane] = (T)(accumulator[i] / sum);
#if STATISTICS
    if (lane == 0) logsumexp[((size_t)sequence * gridDim.y + head) * queries + query] = running_maximum + logf(sum);
#endif
}
