// /// opbench
// title     = "five kernels: row sums, softmax weights, gradients of the weights, one product per kind of output"
// mechanism = ["coalesced"]
// tune      = { BLOCK = [128, 64, 256] }
// define.BF16   = "dtype == 'bf16'"
// define.CAUSAL = "mask == 'causal'"
// define.HEADS  = "heads"
// define.KV_HEADS    = "kv_heads"
// define.PART_STRIDE = "part_stride"
// supports  = { mask = ["none", "causal"], dtype = ["f32", "bf16"], layout = ["heads", "tokens", "qkv"] }
// requires  = ["queries <= 65535 and keys <= 65535 and batch * heads <= 65535"]
//
// [workspace]
// delta   = "batch * heads * queries"
// weights = "batch * heads * queries * keys"
// slopes  = "batch * heads * queries * keys"
//
// [[launch]]
// kernel = "attention_backward_delta"
// grid   = ["cdiv(queries, BLOCK)", "batch * heads"]
// block  = ["BLOCK"]
// args   = [
//     "out", "dout", "delta",
//     { struct = [{ i64 = "out_batch_stride" }, { i64 = "query_head_stride" }, { i64 = "out_stride" }] },
//     "queries", "depth",
// ]
//
// [[launch]]
// kernel = "attention_backward_weights"
// grid   = ["cdiv(keys, BLOCK)", "queries", "batch * heads"]
// block  = ["BLOCK"]
// args   = [
//     "q?", "k?", "qkv?", "qkv?", "logsumexp", "weights",
//     { struct = [{ i64 = "query_batch_stride" }, { i64 = "query_head_stride" }, { i64 = "query_stride" }] },
//     { struct = [{ i64 = "key_batch_stride" }, { i64 = "key_head_stride" }, { i64 = "key_stride" }] },
//     "queries", "keys", "depth",
// ]
//
// [[launch]]
// kernel = "attention_backward_slopes"
// grid   = ["cdiv(keys, BLOCK)", "queries", "batch * heads"]
// block  = ["BLOCK"]
// args   = [
//     "v?", "qkv?", "dout", "delta", "weights", "slopes",
//     { struct = [{ i64 = "key_batch_stride" }, { i64 = "key_head_stride" }, { i64 = "key_stride" }] },
//     { struct = [{ i64 = "out_batch_stride" }, { i64 = "query_head_stride" }, { i64 = "out_stride" }] },
//     "queries", "keys", "depth",
// ]
//
// [[launch]]
// kernel = "attention_backward_queries"
// grid   = ["cdiv(depth, BLOCK)", "queries", "batch * heads"]
// block  = ["BLOCK"]
// args   = [
//     "k?", "qkv?", "slopes", "dq?", "dqkv?",
//     { struct = [{ i64 = "query_batch_stride" }, { i64 = "query_head_stride" }, { i64 = "query_stride" }] },
//     { struct = [{ i64 = "key_batch_stride" }, { i64 = "key_head_stride" }, { i64 = "key_stride" }] },
//     "queries", "keys", "depth",
// ]
//
// [[launch]]
// kernel = "attention_backward_keys"
// grid   = ["cdiv(depth, BLOCK)", "keys", "batch * kv_heads"]
// block  = ["BLOCK"]
// args   = [
//     "q?", "qkv?", "dout", "weights", "slopes", "dk?", "dv?", "dqkv?", "dqkv?",
//     { struct = [{ i64 = "query_batch_stride" }, { i64 = "query_head_stride" }, { i64 = "query_stride" }] },
//     { struct = [{ i64 = "key_batch_stride" }, { i64 = "key_head_stride" }, { i64 = "key_stride" }] },
//     { struct = [{ i64 = "out_batch_stride" }, { i64 = "query_head_stride" }, { i64 = "out_stride" }] },
//     "queries", "keys", "depth",
// ]
// ///
//
// The first variant: each step as it is defined. Limit: weights and slopes (the gradients of the scores) need far more
// memory than all tensors; they are written once and read two or three times. Each product reads both of its operands
// from a cache.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int SHARE = HEADS / KV_HEADS;  // query heads of a key head

// Distances in elements between neighbouring sequences, heads and tokens.
struct Strides { long long batch, head, token; };

// out, dout: rows of depth; delta [batch * HEADS][queries]
extern "C" __global__ void attention_backward_delta(const T* __restrict__ out, const T* __restrict__ dout,
                                                    float* __restrict__ delta, Strides strides, int queries,
                                                    int depth) {
    const int query = blockIdx.x * BLOCK + threadIdx.x, head = blockIdx.y % HEADS, sequence = blockIdx.y / HEADS;
    if (query >= queries) return;
    const size_t at = sequence * strides.batch + head * strides.head + query * strides.token;
    float sum = 0.0f;
    for (int d = 0; d < depth; ++d) sum += (float)out[at + d] * (float)dout[at + d];
    delta[(size_t)blockIdx.y * queries + query] = sum;
}

// q, k: rows of depth; in one packed array, the keys of a token are PART_STRIDE elements after its queries, and its
// values PART_STRIDE elements after its keys. logsumexp [batch * HEADS][queries], weights [batch *
// HEADS][queries][keys]
extern "C" __global__ void attention_backward_weights(const T* __restrict__ q, const T* __restrict__ k,
                                                      const float* __restrict__ logsumexp, float* __restrict__ weights,
                                                      Strides q_strides, Strides k_strides, int queries, int keys,
                                                      int depth) {
    const int key = blockIdx.x * BLOCK + threadIdx.x, query = blockIdx.y;
    const int head = blockIdx.z % HEADS, sequence = blockIdx.z / HEADS, kv_head = head / SHARE;
    if (key >= keys) return;
    const T* from = q + sequence * q_strides.batch + head * q_strides.head + query * q_strides.token;
    const T* to = k + PART_STRIDE + sequence * k_strides.batch + kv_head * k_strides.head + key * k_strides.token;
    float sum = 0.0f;
    for (int d = 0; d < depth; ++d) sum += (float)from[d] * (float)to[d];
    const size_t row = (size_t)blockIdx.z * queries + query;
    const bool visible = !CAUSAL || key <= query + keys - queries;
    weights[row * keys + key] = visible ? __expf(sum * rsqrtf((float)depth) - logsumexp[row]) : 0.0f;
}

// v, dout: rows of depth; delta [batch * HEADS][queries]; weights, slopes [batch * HEADS][queries][keys]
extern "C" __global__ void attention_backward_slopes(const T* __restrict__ v, const T* __restrict__ dout,
                                                     const float* __restrict__ delta, const float* __restrict__ weights,
                                                     float* __restrict__ slopes, Strides v_strides, Strides out_strides,
                                                     int queries, int keys, int depth) {
    const int key = blockIdx.x * BLOCK + threadIdx.x, query = blockIdx.y;
    const int head = blockIdx.z % HEADS, sequence = blockIdx.z / HEADS, kv_head = head / SHARE;
    if (key >= keys) return;
    const T* from = dout + sequence * out_strides.batch + head * out_strides.head + query * out_strides.token;
    const T* to = v + 2 * PART_STRIDE + sequence * v_strides.batch + kv_head * v_strides.head + key * v_strides.token;
    float sum = 0.0f;
    for (int d = 0; d < depth; ++d) sum += (float)from[d] * (float)to[d];
    const size_t row = (size_t)blockIdx.z * queries + query;
    slopes[row * keys + key] = weights[row * keys + key] * (sum - delta[row]) * rsqrtf((float)depth);
}

// slopes [batch * HEADS][queries][keys]; k, dq: rows of depth
extern "C" __global__ void attention_backward_queries(const T* __restrict__ k, const float* __restrict__ slopes,
                                                      T* __restrict__ dq, Strides q_strides, Strides k_strides,
                                                      int queries, int keys, int depth) {
    const int d = blockIdx.x * BLOCK + threadIdx.x, query = blockIdx.y;
    const int head = blockIdx.z % HEADS, sequence = blockIdx.z / HEADS, kv_head = head / SHARE;
    if (d >= depth) return;
    const float* row = slopes + ((size_t)blockIdx.z * queries + query) * keys;
    const T* column = k + PART_STRIDE + sequence * k_strides.batch + kv_head * k_strides.head + d;
    float sum = 0.0f;
    for (int key = 0; key < keys; ++key) sum += row[key] * (float)column[key * k_strides.token];
    dq[sequence * q_strides.batch + head * q_strides.head + query * q_strides.token + d] = (T)sum;
}

// weights, slopes [batch * HEADS][queries][keys]; q, dout, dk, dv: rows of depth; the heads of a group in their order
extern "C" __global__ void attention_backward_keys(const T* __restrict__ q, const T* __restrict__ dout,
                                                   const float* __restrict__ weights, const float* __restrict__ slopes,
                                                   T* __restrict__ dk, T* __restrict__ dv, Strides q_strides,
                                                   Strides k_strides, Strides out_strides, int queries, int keys,
                                                   int depth) {
    const int d = blockIdx.x * BLOCK + threadIdx.x, key = blockIdx.y;
    const int kv_head = blockIdx.z % KV_HEADS, sequence = blockIdx.z / KV_HEADS;
    if (d >= depth) return;
    float of_key = 0.0f, of_value = 0.0f;
    for (int head = kv_head * SHARE; head < (kv_head + 1) * SHARE; ++head) {
        const size_t first = ((size_t)sequence * HEADS + head) * queries * keys + key;
        const T* query_column = q + sequence * q_strides.batch + head * q_strides.head + d;
        const T* out_column = dout + sequence * out_strides.batch + head * out_strides.head + d;
        for (int query = 0; query < queries; ++query) {
            of_key += slopes[first + (size_t)query * keys] * (float)query_column[query * q_strides.token];
            of_value += weights[first + (size_t)query * keys] * (float)out_column[query * out_strides.token];
        }
    }
    const size_t at = sequence * k_strides.batch + kv_head * k_strides.head + key * k_strides.token + d;
    dk[PART_STRIDE + at] = (T)of_key;
    dv[2 * PART_STRIDE + at] = (T)of_value;
}
