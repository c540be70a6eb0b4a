// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "warp_shuffle", "unrolled", "fewer_passes", "register_tile", "split_k",
//     "compile_time_sizes",
// ]
// supports.ragged = ["no", "yes"]
// supports.dtype  = ["f32", "bf16"]
// requires  = ["depth <= 512", "sequences <= 65535", "kv_heads * HEAD_PARTS <= 65535"]
//
// [define]
// BF16       = "dtype == 'bf16'"
// DEPTH      = "depth"
// PAGE_SIZE  = "page_size"
// GROUP      = "group"
// VECTOR     = "lanes"
// BYTES      = "(2 if dtype == 'bf16' else 4) * VECTOR"
// PACK       = "'unsigned short' if BYTES == 2 else 'unsigned' if BYTES == 4 else 'uint2' if BYTES == 8 else 'uint4'"
// COLUMNS    = "depth // lanes"
// LANES      = "1 if COLUMNS == 1 else 2 if COLUMNS == 2 else 4 if COLUMNS <= 4 else 8"
// CHUNKS     = "cdiv(COLUMNS, LANES)"
// QUERIES    = "max(1, min(GROUP, 64 // (CHUNKS * VECTOR)))"
// HEAD_PARTS = "cdiv(GROUP, QUERIES)"
//
// [variant.split]
// title     = "flash decoding: warps split a sequence's tokens; each key is loaded once for all heads of its group"
// builds_on = "online"
// tune      = { WARPS = [4, 8], PER_SM = [2, 1] }
// where     = ["WARPS * PER_SM == 8"]
//
// [variant.split.define]
// ONE_BLOCK  = "0"
// AHEAD      = "0"
// UNROLL     = "4 if CHUNKS * VECTOR <= 16 else 2"
// SHARES     = "sequences * kv_heads * HEAD_PARTS"
// STEPS      = "cdiv(keys, 32)"
// ROWS       = "WARPS * sequences * heads"
//
// [variant.split.workspace]
// averages   = "max(1, min(STEPS, PER_SM * sm_count // SHARES)) * ROWS * depth"
// statistics = "max(1, min(STEPS, PER_SM * sm_count // SHARES)) * ROWS * 2"
//
// [[variant.split.launch]]
// kernel = "decode_split"
// grid   = ["max(1, min(STEPS, PER_SM * sm_count // SHARES))", "kv_heads * HEAD_PARTS", "sequences"]
// block  = [32, "WARPS"]
// args   = ["q", "k", "v", "page_table", "lengths", "averages", "statistics", "kv_heads", "pages_per_sequence"]
//
// [[variant.split.launch]]
// kernel = "decode_merge"
// grid   = ["heads", "sequences"]
// block  = ["32 * cdiv(depth, 32)"]
// args   = ["averages", "statistics", "out", "max(1, min(STEPS, PER_SM * sm_count // SHARES)) * WARPS"]
//
// [variant.split_one_block]
// title     = "one block per sequence and key head: warps split the tokens, and shared memory merges their results"
// builds_on = "split"
// mechanism = ["shared_memory_tile", "fused", "double_buffer"]
// tune      = { WARPS = [8, 4] }
//
// [variant.split_one_block.define]
// ONE_BLOCK  = "1"
// AHEAD      = "dtype == 'f32'"
// UNROLL     = "(4 if CHUNKS * VECTOR <= 16 else 2) // (2 if AHEAD else 1)"
//
// [[variant.split_one_block.launch]]
// kernel = "decode_split"
// grid   = [1, "kv_heads * HEAD_PARTS", "sequences"]
// block  = [32, "WARPS"]
// args   = ["q", "k", "v", "page_table", "lengths", "out", "kv_heads", "pages_per_sequence"]
// ///
//
// There are as many blocks as fit on the GPU at once. Each warp processes a part of a sequence's tokens, and writes its
// average with the maximum and the sum of its weights. A second kernel merges these partial results. A warp keeps up to
// QUERIES query heads of a group in registers, so it loads each key and value once for all of them. LANES lanes share a
// token and load 16 bytes at a time: with 8 lanes, 3 shuffles add up the scores of 4 tokens. UNROLL tokens per lane are
// in flight. Limit: a warp loads nothing while it computes, and its registers leave room for only 8 warps on a
// multiprocessor.
//
// With ONE_BLOCK, one block per sequence and key head merges the partial results of its warps through shared memory,
// without a second launch. With AHEAD, the next keys are loaded as soon as the scores are computed, and the next values
// as soon as the values are added, into the same registers. In bf16, AHEAD gains nothing: a token has half the bytes
// and as much arithmetic, and 4 tokens at once hide more of the latency. Limit of ONE_BLOCK: too few blocks for a few
// sequences. Idea: Dao et al., "Flash-Decoding for long-context inference" (2023).
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr float NONE = -1e30f;  // below any score; unlike -infinity, its difference from itself is 0, not NaN
constexpr int TOKENS = 32 / LANES, STEP = TOKENS * UNROLL, ITEMS = CHUNKS * VECTOR;
typedef PACK Pack;  // the vector of one load or store

__device__ __forceinline__ float element(const Pack& pack, int i) {
    return (float)reinterpret_cast<const T*>(&pack)[i];
}

// Load the columns of a row that belong to this lane: `lane_column`, lane_column + LANES, ...
__device__ __forceinline__ void load_row(Pack (&pack)[CHUNKS], const T* row, int lane_column) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const int column = c * LANES + lane_column;
        pack[c] = column < COLUMNS ? reinterpret_cast<const Pack*>(row)[column] : Pack{};
    }
}

// q and out [sequences][heads][DEPTH]; k, v [pages][PAGE_SIZE][kv_heads][DEPTH]; page_table
// [sequences][pages_per_sequence]; averages [sequences][heads][parts][DEPTH], not yet divided by their sums; statistics
// [sequences][heads][parts]: maximum and sum
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    decode_split(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                 const int* __restrict__ page_table, const int* __restrict__ lengths,
#if ONE_BLOCK
                 T* __restrict__ out,
#else
                 float* __restrict__ averages, float2* __restrict__ statistics,
#endif
                 int kv_heads, int pages_per_sequence) {
    const int lane = threadIdx.x, lane_column = lane % LANES, slot = lane / LANES;
    const int sequence = blockIdx.z, kv_head = blockIdx.y / HEAD_PARTS, first_query = blockIdx.y % HEAD_PARTS * QUERIES;
    const int part = blockIdx.x * WARPS + threadIdx.y, parts = gridDim.x * WARPS, length = lengths[sequence];
    const int share = ((length + parts - 1) / parts + STEP - 1) / STEP * STEP;
    const int first = min(part * share, length), end = min(first + share, length);
    const size_t first_head = ((size_t)sequence * kv_heads + kv_head) * GROUP + first_query;
    page_table += (size_t)sequence * pages_per_sequence;
    k += (size_t)kv_head * DEPTH, v += (size_t)kv_head * DEPTH;

    float query[QUERIES][ITEMS], accumulator[QUERIES][ITEMS] = {}, maximum[QUERIES], sum[QUERIES] = {};
#pragma unroll
    for (int h = 0; h < QUERIES; ++h) {
        Pack pack[CHUNKS];
        load_row(pack, q + (first_head + min(h, GROUP - 1 - first_query)) * DEPTH, lane_column);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) query[h][i] = element(pack[i / VECTOR], i % VECTOR) * rsqrtf((float)DEPTH);
        maximum[h] = NONE;
    }
    Pack key[UNROLL][CHUNKS], value[UNROLL][CHUNKS];
    unsigned row[UNROLL];
    const auto locate = [&](int start) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            // after the end: load the last token again; it gets weight 0
            const int token = min(start + u * TOKENS + slot, end - 1);
            row[u] = (unsigned)page_table[token / PAGE_SIZE] * PAGE_SIZE + token % PAGE_SIZE;
        }
    };
    const auto load_rows = [&](Pack(&to)[UNROLL][CHUNKS], const T* from) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) load_row(to[u], from + (size_t)row[u] * kv_heads * DEPTH, lane_column);
    };
    if (AHEAD && first < end) {
        locate(first);
        load_rows(key, k);
        load_rows(value, v);
        locate(first + STEP);
    }
    for (int start = first; start < end; start += STEP) {
        const bool more = start + STEP < end;
        if (!AHEAD) {
            locate(start);
            load_rows(key, k);
            load_rows(value, v);
        }
        float weight[UNROLL][QUERIES];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
            for (int h = 0; h < QUERIES; ++h) {
                float score = 0.0f;
#pragma unroll
                for (int i = 0; i < ITEMS; ++i) score += query[h][i] * element(key[u][i / VECTOR], i % VECTOR);
#pragma unroll
                for (int step = LANES / 2; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffffu, score, step);
                weight[u][h] = start + u * TOKENS + slot < end ? score : __int_as_float(0xff800000);  // -infinity
            }
        }
        if (AHEAD && more) load_rows(key, k);
#pragma unroll
        for (int h = 0; h < QUERIES; ++h) {
            float new_maximum = maximum[h];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) new_maximum = fmaxf(new_maximum, weight[u][h]);
            const float factor = __expf(maximum[h] - new_maximum);
            maximum[h] = new_maximum;
            sum[h] *= factor;
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) sum[h] += weight[u][h] = __expf(weight[u][h] - new_maximum);
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) {
                accumulator[h][i] *= factor;
#pragma unroll
                for (int u = 0; u < UNROLL; ++u)
                    accumulator[h][i] += weight[u][h] * element(value[u][i / VECTOR], i % VECTOR);
            }
        }
        if (AHEAD && more) {
            load_rows(value, v);
            locate(start + 2 * STEP);
        }
    }
#if ONE_BLOCK
    __shared__ float averages[WARPS][QUERIES * DEPTH];
    __shared__ float2 statistics[WARPS][QUERIES];
#endif
#pragma unroll
    for (int h = 0; h < QUERIES; ++h) {
        if (first_query + h >= GROUP) break;
#pragma unroll
        for (int step = LANES; step < 32; step *= 2) {  // merge the slots; each slot has processed other tokens
            const float merged = fmaxf(maximum[h], __shfl_xor_sync(0xffffffffu, maximum[h], step));
            const float factor = __expf(maximum[h] - merged);
            maximum[h] = merged;
            sum[h] *= factor;
            sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], step);
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) {
                accumulator[h][i] *= factor;
                accumulator[h][i] += __shfl_xor_sync(0xffffffffu, accumulator[h][i], step);
            }
        }
#if ONE_BLOCK
        float* const to = averages[threadIdx.y] + h * DEPTH;
        if (lane == 0) statistics[threadIdx.y][h] = make_float2(maximum[h], sum[h]);
#else
        const size_t at = (first_head + h) * parts + part;
        float* const to = averages + at * DEPTH;
        if (lane == 0) statistics[at] = make_float2(maximum[h], sum[h]);
#endif
        if (slot == 0) {
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) {
                const int column = i / VECTOR * LANES + lane_column;
                if (column < COLUMNS) to[column * VECTOR + i % VECTOR] = accumulator[h][i];
            }
        }
    }
#if ONE_BLOCK
    __syncthreads();
    const int thread = threadIdx.y * 32 + lane, outputs = min(QUERIES, GROUP - first_query) * DEPTH;
    for (int e = thread; e < outputs; e += 32 * WARPS) {
        const int h = e / DEPTH;
        float largest = NONE, weights = 0.0f, average = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) largest = fmaxf(largest, statistics[w][h].x);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float factor = __expf(statistics[w][h].x - largest);
            weights += factor * statistics[w][h].y;
            average += factor * averages[w][e];
        }
        out[first_head * DEPTH + e] = (T)(average / weights);
    }
#endif
}

#if !ONE_BLOCK
// Merge the partial results of one sequence and head, in one block. out [sequences][heads][DEPTH]
extern "C" __global__ void decode_merge(const float* __restrict__ averages, const float2* __restrict__ statistics,
                                        T* __restrict__ out, int parts) {
    const size_t row = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
    averages += row * parts * DEPTH, statistics += row * parts;
    const int d = threadIdx.x;
    if (d >= DEPTH) return;
    float maximum = NONE, sum = 0.0f, average = 0.0f;
#pragma unroll 8
    for (int part = 0; part < parts; ++part) maximum = fmaxf(maximum, statistics[part].x);
#pragma unroll 8
    for (int part = 0; part < parts; ++part) {
        const float weight = __expf(statistics[part].x - maximum);
        sum += weight * statistics[part].y;
        average += weight * averages[(size_t)part * DEPTH + d];
    }
    out[row * DEPTH + d] = (T)(average / sum);
}
#endif
