// /// opbench
// title     = "three kernels: scores, softmax, weighted sum of values; all scores are stored in global memory"
// mechanism = ["coalesced", "warp_shuffle", "block_reduction"]
// tune      = { BLOCK = [128, 64, 256] }
// define.BF16   = "dtype == 'bf16'"
// define.CAUSAL = "mask == 'causal'"
// define.HEADS  = "heads"
// define.HEADS_PER_KV_HEAD = "heads // kv_heads"
// define.PART_STRIDE       = "part_stride"
// define.STATISTICS = "statistics == 'logsumexp'"
// supports.mask   = ["none", "causal"]
// supports.dtype  = ["f32", "bf16"]
// supports.layout = ["heads", "tokens", "qkv"]
// supports.statistics = ["none", "logsumexp"]
// requires  = ["queries <= 65535 and batch * heads <= 65535"]
// workspace = { scores = "batch * heads * queries * keys" }
//
// [[launch]]
// kernel = "attention_scores"
// grid   = ["cdiv(keys, BLOCK)", "queries", "batch * heads"]
// block  = ["BLOCK"]
// args   = [
//     "q?", "k?", "qkv?", "qkv?", "scores",
//     { struct = [{ i64 = "query_batch_stride" }, { i64 = "query_head_stride" }, { i64 = "query_stride" }] },
//     { struct = [{ i64 = "key_batch_stride" }, { i64 = "key_head_stride" }, { i64 = "key_stride" }] },
//     "queries", "keys", "depth",
// ]
//
// [[launch]]
// kernel = "attention_softmax"
// grid   = ["batch * heads * queries"]
// block  = ["BLOCK"]
// args   = ["scores", "logsumexp?", "keys"]
//
// [[launch]]
// kernel = "attention_average"
// grid   = ["cdiv(depth, BLOCK)", "queries", "batch * heads"]
// block  = ["BLOCK"]
// args   = [
//     "scores", "v?", "qkv?", "out",
//     { struct = [{ i64 = "key_batch_stride" }, { i64 = "key_head_stride" }, { i64 = "key_stride" }] },
//     { struct = [{ i64 = "out_batch_stride" }, { i64 = "query_head_stride" }, { i64 = "out_stride" }] },
//     "queries", "keys", "depth",
// ]
// ///
//
// The first variant: each step as it is defined. Limit: memory traffic. The scores need far more memory than all
// tensors together, and they are written twice and read four times. For each score a thread reads two rows of depth;
// for each output it reads a row of scores and a column of v.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// Elements from one sequence, from one head, and from one token, to the next.
struct Strides { long long batch, head, token; };

// q and k consist of rows of `depth` elements. In one packed array, the keys of a token begin PART_STRIDE elements
// after its queries, and its values PART_STRIDE elements after its keys. scores [batch * HEADS][queries][keys]
extern "C" __global__ void attention_scores(const T* __restrict__ q, const T* __restrict__ k,
                                            float* __restrict__ scores, Strides q_strides, Strides k_strides,
                                            int queries, int keys, int depth) {
    const int key = blockIdx.x * BLOCK + threadIdx.x, query = blockIdx.y;
    const int head = blockIdx.z % HEADS, sequence = blockIdx.z / HEADS, kv_head = head / HEADS_PER_KV_HEAD;
    if (key >= keys) return;
    const T* from = q + sequence * q_strides.batch + head * q_strides.head + query * q_strides.token;
    const T* to = k + PART_STRIDE + sequence * k_strides.batch + kv_head * k_strides.head + key * k_strides.token;
    float sum = 0.0f;
    for (int d = 0; d < depth; ++d) sum += (float)from[d] * (float)to[d];
    const bool visible = !CAUSAL || key <= query + keys - queries;
    scores[((size_t)blockIdx.z * queries + query) * keys + key] =
        visible ? sum * rsqrtf((float)depth) : __int_as_float(0xff800000);  // -infinity
}

// Return the maximum or the sum of `value` over the block, in every thread.
template <bool maximum>
__device__ __forceinline__ float over_block(float value) {
    __shared__ float shared[BLOCK / 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, step);
        value = maximum ? fmaxf(value, other) : value + other;
    }
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[0];
#pragma unroll
    for (int warp = 1; warp < BLOCK / 32; ++warp) value = maximum ? fmaxf(value, shared[warp]) : value + shared[warp];
    return value;
}

// scores [rows][keys], in place; logsumexp [rows]
extern "C" __global__ void attention_softmax(float* __restrict__ scores,
#if STATISTICS
                                             float* __restrict__ logsumexp,
#endif
                                             int keys) {
    float* row = scores + (size_t)blockIdx.x * keys;
    float row_maximum = __int_as_float(0xff800000), sum = 0.0f;  // -infinity
    for (int key = threadIdx.x; key < keys; key += BLOCK) row_maximum = fmaxf(row_maximum, row[key]);
    row_maximum = over_block<true>(row_maximum);
    for (int key = threadIdx.x; key < keys; key += BLOCK) sum += __expf(row[key] - row_maximum);
    sum = over_block<false>(sum);
#if STATISTICS
    if (threadIdx.x == 0) logsumexp[blockIdx.x] = row_maximum + logf(sum);
#endif
    const float factor = 1.0f / sum;
    for (int key = threadIdx.x; key < keys; key += BLOCK) row[key] = __expf(row[key] - row_maximum) * factor;
}

// scores [batch * HEADS][queries][keys]; v, out: rows of `depth` elements
extern "C" __global__ void attention_average(const float* __restrict__ scores, const T* __restrict__ v,
                                             T* __restrict__ out, Strides v_strides, Strides out_strides, int queries,
                                             int keys, int depth) {
    const int d = blockIdx.x * BLOCK + threadIdx.x, query = blockIdx.y;
    const int head = blockIdx.z % HEADS, sequence = blockIdx.z / HEADS, kv_head = head / HEADS_PER_KV_HEAD;
    if (d >= depth) return;
    const float* row = scores + ((size_t)blockIdx.z * queries + query) * keys;
    const T* column = v + 2 * PART_STRIDE + sequence * v_strides.batch + kv_head * v_strides.head + d;
    float sum = 0.0f;
    for (int key = 0; key < keys; ++key) sum += row[key] * (float)column[key * v_strides.token];
    out[sequence * out_strides.batch + head * out_strides.head + query * out_strides.token + d] = (T)sum;
}
