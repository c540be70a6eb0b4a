// /// opbench
// title     = "shared-memory tiles; softmax weights are recomputed, by a kernel per key tile and one per query tile"
// builds_on = "score_matrices"
// mechanism = [
//     "coalesced", "warp_shuffle", "fewer_passes", "compile_time_sizes", "shared_memory_tile", "register_tile",
// ]
// tune      = { BN = [32, 64] }
// define.BF16   = "dtype == 'bf16'"
// define.CAUSAL = "mask == 'causal'"
// define.DEPTH  = "depth"
// define.QUERY_STRIDE = "query_stride"
// define.KEY_STRIDE   = "key_stride"
// define.OUT_STRIDE   = "out_stride"
// define.PART_STRIDE  = "part_stride"
// define.SHARE        = "heads // kv_heads"
// supports  = { mask = ["none", "causal"], dtype = ["f32", "bf16"], layout = ["heads", "tokens", "qkv"] }
// requires  = [
//     "depth <= 128", "batch <= 65535 and heads <= 65535",
//     "query_batch_stride < 2 ** 32 and key_batch_stride < 2 ** 32",
// ]
// workspace = { delta = "batch * heads * queries" }
//
// [[launch]]
// kernel = "attention_backward_delta"
// grid   = ["cdiv(queries, 8)", "heads", "batch"]
// block  = [32, 8]
// args   = [
//     "out", "dout", "delta", { struct = [{ u32 = "out_batch_stride" }, { u32 = "query_head_stride" }] }, "queries",
// ]
//
// [[launch]]
// kernel = "attention_backward_keys"
// grid   = ["cdiv(keys, 64)", "kv_heads", "batch"]
// block  = [16, 16]
// shared = "4 * (2 * (64 + BN) * (16 * cdiv(depth, 16) + 1) + 2 * 64 * (BN + 1) + 2 * BN)"
// args   = [
//     "q?", "k?", "v?", "qkv?", "qkv?", "qkv?", "dout", "logsumexp", "delta", "dk?", "dv?", "dqkv?", "dqkv?",
//     { struct = [{ u32 = "query_batch_stride" }, { u32 = "query_head_stride" }] },
//     { struct = [{ u32 = "key_batch_stride" }, { u32 = "key_head_stride" }] },
//     { struct = [{ u32 = "out_batch_stride" }, { u32 = "query_head_stride" }] },
//     "heads", "queries", "keys",
// ]
//
// [[launch]]
// kernel = "attention_backward_queries"
// grid   = ["cdiv(queries, 64)", "heads", "batch"]
// block  = [16, 16]
// shared = "4 * (2 * (64 + BN) * (16 * cdiv(depth, 16) + 1) + 64 * (BN + 1))"
// args   = [
//     "q?", "k?", "v?", "qkv?", "qkv?", "qkv?", "dout", "logsumexp", "delta", "dq?", "dqkv?",
//     { struct = [{ u32 = "query_batch_stride" }, { u32 = "query_head_stride" }] },
//     { struct = [{ u32 = "key_batch_stride" }, { u32 = "key_head_stride" }] },
//     { struct = [{ u32 = "out_batch_stride" }, { u32 = "query_head_stride" }] },
//     "queries", "keys",
// ]
// ///
//
// The forward pass stores the log-sum-exp of each row, so a weight is one exponential of its score, and no score is
// stored. A block of the second kernel keeps 64 keys and values, loops over the queries to which they are visible, and
// adds up dk and dv in registers. A block of the third kernel keeps 64 queries and loops over keys. Only one block
// writes each output, so the sums have a fixed order; the cost is two products more than with atomic additions. Limit:
// FMA units and shared memory, as in attention/tiled. Idea: Dao, "FlashAttention-2" (2023).
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int ROWS = 64, COLUMNS = BN / 16, ITEMS = (DEPTH + 15) / 16, PITCH = ITEMS * 16 + 1;

// Elements from one sequence, and from one head, to the next.
struct Strides { unsigned batch, head; };

// Copy rows of DEPTH elements, `stride` elements apart, into a tile; rows from `left` on, and columns from DEPTH on,
// become zeros.
template <int rows, int stride>
__device__ __forceinline__ void load_tile(float* tile, const T* from, int left) {
    for (int i = threadIdx.y * 16 + threadIdx.x; i < rows * (PITCH - 1); i += 256) {
        const int row = i / (PITCH - 1), d = i % (PITCH - 1);
        tile[row * PITCH + d] = row < left && d < DEPTH ? (float)from[(size_t)row * stride + d] : 0.0f;
    }
}

// product[i][j] = row threadIdx.y * 4 + i of `a` times row j * 16 + threadIdx.x of `b`
__device__ __forceinline__ void multiply_rows(float (&product)[4][COLUMNS], const float* a, const float* b) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) product[i][j] = 0.0f;
#pragma unroll 4
    for (int d = 0; d < DEPTH; ++d) {
        float from[4], to[COLUMNS];
#pragma unroll
        for (int i = 0; i < 4; ++i) from[i] = a[(threadIdx.y * 4 + i) * PITCH + d];
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) to[j] = b[(j * 16 + threadIdx.x) * PITCH + d];
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) product[i][j] += from[i] * to[j];
    }
}

// sum[i][d] += row threadIdx.y * 4 + i of `factors` times column d * 16 + threadIdx.x of `b`
__device__ __forceinline__ void add_product(float (&sum)[4][ITEMS], const float* factors, const float* b) {
#pragma unroll 4
    for (int k = 0; k < BN; ++k) {
        float factor[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) factor[i] = factors[(threadIdx.y * 4 + i) * (BN + 1) + k];
#pragma unroll
        for (int d = 0; d < ITEMS; ++d) {
            const float value = b[k * PITCH + d * 16 + threadIdx.x];
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[i][d] += factor[i] * value;
        }
    }
}

// Store the first `left` of 64 rows, multiplied by a factor.
template <int stride>
__device__ __forceinline__ void store_rows(T* to, const float (&sum)[4][ITEMS], int left, float factor) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = threadIdx.y * 4 + i;
        if (row >= left) continue;
#pragma unroll
        for (int d = 0; d < ITEMS; ++d)
            if (d * 16 + threadIdx.x < DEPTH) to[(size_t)row * stride + d * 16 + threadIdx.x] = (T)(sum[i][d] * factor);
    }
}

// out, dout: rows of DEPTH elements, OUT_STRIDE elements from one token to the next; delta [batch][heads][queries]; a
// warp computes a row
extern "C" __global__ void __launch_bounds__(256)
    attention_backward_delta(const T* __restrict__ out, const T* __restrict__ dout, float* __restrict__ delta,
                             Strides strides, int queries) {
    const int query = blockIdx.x * 8 + threadIdx.y;
    if (query >= queries) return;
    const size_t at =
        (size_t)blockIdx.z * strides.batch + (size_t)blockIdx.y * strides.head + (size_t)query * OUT_STRIDE;
    float sum = 0.0f;
    for (int d = threadIdx.x; d < DEPTH; d += 32) sum += (float)out[at + d] * (float)dout[at + d];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) delta[((size_t)blockIdx.z * gridDim.y + blockIdx.y) * queries + query] = sum;
}

// All tensors consist of rows of DEPTH elements. From one token to the next there are QUERY_STRIDE (q), KEY_STRIDE (k,
// v, dk, dv) or OUT_STRIDE (dout) elements. In one packed array, the keys of a token begin PART_STRIDE elements after
// its queries, and its values PART_STRIDE elements after its keys. logsumexp, delta [batch][heads][queries]
extern "C" __global__ void __launch_bounds__(256)
    attention_backward_keys(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                            const T* __restrict__ dout, const float* __restrict__ logsumexp,
                            const float* __restrict__ delta, T* __restrict__ dk, T* __restrict__ dv, Strides q_strides,
                            Strides k_strides, Strides out_strides, int heads, int queries, int keys) {
    extern __shared__ float shared[];
    float* const key_tile = shared;                        // [ROWS][PITCH]
    float* const value_tile = key_tile + ROWS * PITCH;     // [ROWS][PITCH]
    float* const query_tile = value_tile + ROWS * PITCH;   // [BN][PITCH]
    float* const gradient_tile = query_tile + BN * PITCH;  // [BN][PITCH]
    float* const weights = gradient_tile + BN * PITCH;     // [ROWS][BN + 1], transposed: rows are keys
    float* const slopes = weights + ROWS * (BN + 1);       // the same
    float* const statistics = slopes + ROWS * (BN + 1);    // [BN]
    float* const deltas = statistics + BN;                 // [BN]
    const int x = threadIdx.x, y = threadIdx.y, thread = y * 16 + x;
    const unsigned sequence = blockIdx.z, kv_head = blockIdx.y;
    const int first = blockIdx.x * ROWS, causal_offset = keys - queries;
    const size_t kv_offset =
        (size_t)sequence * k_strides.batch + (size_t)kv_head * k_strides.head + (size_t)first * KEY_STRIDE;
    load_tile<ROWS, KEY_STRIDE>(key_tile, k + kv_offset + PART_STRIDE, keys - first);
    load_tile<ROWS, KEY_STRIDE>(value_tile, v + kv_offset + 2 * PART_STRIDE, keys - first);
    const float scale = rsqrtf((float)DEPTH);
    // the first query to which a key of this block is visible
    const int start = CAUSAL ? max(0, first - causal_offset) / BN * BN : 0;
    float of_key[4][ITEMS] = {}, of_value[4][ITEMS] = {};
    for (unsigned head = kv_head * SHARE; head < (kv_head + 1) * SHARE; ++head) {
        const T* own_queries = q + (size_t)sequence * q_strides.batch + (size_t)head * q_strides.head;
        const T* own_gradients = dout + (size_t)sequence * out_strides.batch + (size_t)head * out_strides.head;
        const size_t rows = ((size_t)sequence * heads + head) * queries;
        for (int query = start; query < queries; query += BN) {
            __syncthreads();  // all threads have read the previous tile
            load_tile<BN, QUERY_STRIDE>(query_tile, own_queries + (size_t)query * QUERY_STRIDE, queries - query);
            load_tile<BN, OUT_STRIDE>(gradient_tile, own_gradients + (size_t)query * OUT_STRIDE, queries - query);
            if (thread < BN) {
                const bool inside = query + thread < queries;
                statistics[thread] = inside ? logsumexp[rows + query + thread] : 0.0f;
                deltas[thread] = inside ? delta[rows + query + thread] : 0.0f;
            }
            __syncthreads();
            float score[4][COLUMNS], slope[4][COLUMNS];
            multiply_rows(score, key_tile, query_tile);
            multiply_rows(slope, value_tile, gradient_tile);
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    const int column = j * 16 + x, key = first + y * 4 + i;
                    const bool visible =
                        query + column < queries && key < keys && (!CAUSAL || key <= query + column + causal_offset);
                    const float weight = visible ? __expf(score[i][j] * scale - statistics[column]) : 0.0f;
                    weights[(y * 4 + i) * (BN + 1) + column] = weight;
                    slopes[(y * 4 + i) * (BN + 1) + column] = weight * (slope[i][j] - deltas[column]);
                }
            __syncwarp();  // the same half-warp writes and reads the weights of a row, so a warp barrier is enough
            add_product(of_key, slopes, query_tile);
            add_product(of_value, weights, gradient_tile);
        }
    }
    store_rows<KEY_STRIDE>(dk + kv_offset + PART_STRIDE, of_key, keys - first, scale);
    store_rows<KEY_STRIDE>(dv + kv_offset + 2 * PART_STRIDE, of_value, keys - first, 1.0f);
}

// All tensors consist of rows of DEPTH elements. From one token to the next there are QUERY_STRIDE (q, dq), KEY_STRIDE
// (k and v) or OUT_STRIDE (dout) elements. logsumexp, delta [batch][heads][queries]
extern "C" __global__ void __launch_bounds__(256)
    attention_backward_queries(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                               const T* __restrict__ dout, const float* __restrict__ logsumexp,
                               const float* __restrict__ delta, T* __restrict__ dq, Strides q_strides,
                               Strides k_strides, Strides out_strides, int queries, int keys) {
    extern __shared__ float shared[];
    float* const query_tile = shared;                        // [ROWS][PITCH]
    float* const gradient_tile = query_tile + ROWS * PITCH;  // [ROWS][PITCH]
    float* const key_tile = gradient_tile + ROWS * PITCH;    // [BN][PITCH]
    float* const value_tile = key_tile + BN * PITCH;         // [BN][PITCH]
    float* const slopes = value_tile + BN * PITCH;           // [ROWS][BN + 1]
    const int x = threadIdx.x, y = threadIdx.y;
    const unsigned sequence = blockIdx.z, head = blockIdx.y;
    // causal: blocks with the most keys start first
    const int first = (CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * ROWS;
    const int causal_offset = keys - queries, key_end = CAUSAL ? min(keys, first + ROWS + causal_offset) : keys;
    const size_t q_offset =
        (size_t)sequence * q_strides.batch + (size_t)head * q_strides.head + (size_t)first * QUERY_STRIDE;
    const T* own_gradients =
        dout + (size_t)sequence * out_strides.batch + (size_t)head * out_strides.head + (size_t)first * OUT_STRIDE;
    const size_t kv_offset = (size_t)sequence * k_strides.batch + (size_t)(head / SHARE) * k_strides.head;
    k += kv_offset + PART_STRIDE, v += kv_offset + 2 * PART_STRIDE;
    load_tile<ROWS, QUERY_STRIDE>(query_tile, q + q_offset, queries - first);
    load_tile<ROWS, OUT_STRIDE>(gradient_tile, own_gradients, queries - first);
    const float scale = rsqrtf((float)DEPTH);
    const size_t rows = ((size_t)sequence * gridDim.y + head) * queries;
    float statistic[4], own_delta[4], sum[4][ITEMS] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int query = first + y * 4 + i;
        statistic[i] = query < queries ? logsumexp[rows + query] : 0.0f;
        own_delta[i] = query < queries ? delta[rows + query] : 0.0f;
    }
    for (int start = 0; start < key_end; start += BN) {
        __syncthreads();  // all threads have read the previous tile
        load_tile<BN, KEY_STRIDE>(key_tile, k + (size_t)start * KEY_STRIDE, keys - start);
        load_tile<BN, KEY_STRIDE>(value_tile, v + (size_t)start * KEY_STRIDE, keys - start);
        __syncthreads();
        float score[4][COLUMNS], slope[4][COLUMNS];
        multiply_rows(score, query_tile, key_tile);
        multiply_rows(slope, gradient_tile, value_tile);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                const int key = start + j * 16 + x, query = first + y * 4 + i;
                const bool visible = query < queries && key < keys && (!CAUSAL || key <= query + causal_offset);
                const float weight = visible ? __expf(score[i][j] * scale - statistic[i]) : 0.0f;
                slopes[(y * 4 + i) * (BN + 1) + j * 16 + x] = weight * (slope[i][j] - own_delta[i]);
            }
        __syncwarp();  // the same half-warp writes and reads the slopes of a row, so a warp barrier is enough
        add_product(sum, slopes, key_tile);
    }
    store_rows<QUERY_STRIDE>(dq + q_offset, sum, queries - first, scale);
}
