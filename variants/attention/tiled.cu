// /// opbench
// title     = "tiles of 64 queries and keys in shared memory, register tiles, 16 lanes per row of the softmax"
// builds_on = "online"
// mechanism = [
//     "coalesced", "warp_shuffle", "fewer_passes", "compile_time_sizes", "shared_memory_tile", "register_tile",
// ]
// tune      = { BN = [64, 32] }
// tile      = { m = 64, n = "DEPTH" }
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
//     "depth <= 128", "batch <= 65535 and heads <= 65535",
//     "query_batch_stride < 2 ** 32 and key_batch_stride < 2 ** 32",
// ]
//
// [[launch]]
// kernel = "attention_tiled"
// grid   = ["cdiv(queries, 64)", "heads", "batch"]
// block  = [16, 16]
// shared = "4 * ((64 + BN) * (depth + 1) + BN * 16 * cdiv(depth, 16) + 64 * (BN + 1))"
// args   = [
//     "q?", "k?", "v?", "qkv?", "qkv?", "qkv?", "out", "logsumexp?",
//     { struct = [{ u32 = "query_batch_stride" }, { u32 = "query_head_stride" }] },
//     { struct = [{ u32 = "key_batch_stride" }, { u32 = "key_head_stride" }] },
//     { struct = [{ u32 = "out_batch_stride" }, { u32 = "query_head_stride" }] },
//     "heads // kv_heads", "queries", "keys",
// ]
// ///
//
// A block keeps 64 queries and loops over the keys in tiles, so each key and value that it loads is used for 64
// queries. A thread computes 4 rows of scores and 4 rows of the average. The 16 threads of a row find its maximum with
// shuffles, and pass the weights through shared memory. Limit: FMA units, and shared memory, from which four to eight
// multiply-adds need two or three words. Idea: Dao et al., "FlashAttention" (2022).
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int ROWS = 64, COLUMNS = BN / 16, ITEMS = (DEPTH + 15) / 16, WIDE = ITEMS * 16;

// Return the maximum or the sum over the 16 threads of a row, in each of them.
template <bool maximum>
__device__ __forceinline__ float over_row(float value) {
#pragma unroll
    for (int step = 8; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, step);
        value = maximum ? fmaxf(value, other) : value + other;
    }
    return value;
}

// Elements from one sequence, and from one head, to the next.
struct Strides { unsigned batch, head; };

// q, k, v and out consist of rows of DEPTH elements. From one token to the next there are QUERY_STRIDE (q), KEY_STRIDE
// (k and v) or OUT_STRIDE (out) elements. In one packed array, the keys of a token begin PART_STRIDE elements after its
// queries, and its values PART_STRIDE elements after its keys. logsumexp [batch][heads][queries]
extern "C" __global__ void __launch_bounds__(256)
    attention_tiled(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ out,
#if STATISTICS
                    float* __restrict__ logsumexp,
#endif
                    Strides q_strides, Strides k_strides, Strides out_strides, int heads_per_kv_head, int queries,
                    int keys) {
    extern __shared__ float shared[];
    float* const query_tile = shared;                         // [ROWS][DEPTH + 1]
    float* const key_tile = query_tile + ROWS * (DEPTH + 1);  // [BN][DEPTH + 1]
    float* const value_tile = key_tile + BN * (DEPTH + 1);    // [BN][WIDE]
    float* const weights = value_tile + BN * WIDE;            // [ROWS][BN + 1]
    const int x = threadIdx.x, y = threadIdx.y, thread = y * 16 + x;
    const unsigned sequence = blockIdx.z, head = blockIdx.y;
    // causal: blocks with the most keys start first
    const int first = (CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * ROWS;
    q += (size_t)sequence * q_strides.batch + (size_t)head * q_strides.head;
    const size_t kv_offset = (size_t)sequence * k_strides.batch + (size_t)(head / heads_per_kv_head) * k_strides.head;
    k += kv_offset + PART_STRIDE, v += kv_offset + 2 * PART_STRIDE;
    out += (size_t)sequence * out_strides.batch + (size_t)head * out_strides.head;
    for (int i = thread; i < ROWS * DEPTH; i += 256) {
        const int row = i / DEPTH, d = i % DEPTH;
        query_tile[row * (DEPTH + 1) + d] =
            first + row < queries ? (float)q[(size_t)(first + row) * QUERY_STRIDE + d] * rsqrtf((float)DEPTH) : 0.0f;
    }
    float accumulator[4][ITEMS] = {}, running_maximum[4], sum[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) running_maximum[i] = __int_as_float(0xff800000);  // -infinity
    const int causal_offset = keys - queries, key_end = CAUSAL ? min(keys, first + ROWS + causal_offset) : keys;
    for (int start = 0; start < key_end; start += BN) {
        __syncthreads();  // all threads have read the previous tile
        for (int i = thread; i < BN * WIDE; i += 256) {
            const int row = i / WIDE, d = i % WIDE;
            const bool inside = start + row < keys && d < DEPTH;
            const size_t at = (size_t)(start + row) * KEY_STRIDE + d;
            if (d < DEPTH) key_tile[row * (DEPTH + 1) + d] = inside ? (float)k[at] : 0.0f;
            value_tile[row * WIDE + d] = inside ? (float)v[at] : 0.0f;
        }
        __syncthreads();
        float score[4][COLUMNS] = {};
#pragma unroll 4
        for (int d = 0; d < DEPTH; ++d) {
            float from[4], to[COLUMNS];
#pragma unroll
            for (int i = 0; i < 4; ++i) from[i] = query_tile[(y * 4 + i) * (DEPTH + 1) + d];
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) to[j] = key_tile[(j * 16 + x) * (DEPTH + 1) + d];
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) score[i][j] += from[i] * to[j];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int last = CAUSAL ? min(keys - 1, first + y * 4 + i + causal_offset) : keys - 1;
            float new_maximum = running_maximum[i];
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                if (start + j * 16 + x > last) score[i][j] = __int_as_float(0xff800000);
                new_maximum = fmaxf(new_maximum, score[i][j]);
            }
            new_maximum = over_row<true>(new_maximum);
            const float factor = __expf(running_maximum[i] - new_maximum);
            float part = 0.0f;
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                const float weight = __expf(score[i][j] - new_maximum);
                weights[(y * 4 + i) * (BN + 1) + j * 16 + x] = weight;
                part += weight;
            }
            running_maximum[i] = new_maximum;
            sum[i] = sum[i] * factor + over_row<false>(part);
#pragma unroll
            for (int d = 0; d < ITEMS; ++d) accumulator[i][d] *= factor;
        }
        __syncwarp();  // the same half-warp writes and reads the weights of a row, so a warp barrier is enough
#pragma unroll 4
        for (int key = 0; key < BN; ++key) {
            float weight[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) weight[i] = weights[(y * 4 + i) * (BN + 1) + key];
#pragma unroll
            for (int d = 0; d < ITEMS; ++d) {
                const float value = value_tile[key * WIDE + d * 16 + x];
#pragma unroll
                for (int i = 0; i < 4; ++i) accumulator[i][d] += weight[i] * value;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int query = first + y * 4 + i;
        if (query >= queries) continue;
#if STATISTICS
        if (x == 0)
            logsumexp[((size_t)sequence * gridDim.y + head) * queries + query] = running_maximum[i] + logf(sum[i]);
#endif
#pragma unroll
        for (int d = 0; d < ITEMS; ++d)
            if (d * 16 + x < DEPTH) out[(size_t)query * OUT_STRIDE + d * 16 + x] = (T)(accumulator[i][d] / sum[i]);
    }
}
