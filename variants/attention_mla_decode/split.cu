// /// opbench
// title     = "flash decoding: blocks split a sequence's tokens; a second kernel merges their partial results"
// builds_on = "shared_rows"
// mechanism = [
//     "coalesced", "warp_shuffle", "fewer_passes", "compile_time_sizes", "shared_memory_tile", "register_tile",
//     "vectorised_access", "split_k",
// ]
// tune      = { WARPS = [8], HEADS = [2, 1], TILE = [16, 8], PER_SM = [2, 1] }
// where     = ["TILE == 16 or PER_SM == 2"]
// supports.ragged = ["no", "yes"]
// supports.dtype  = ["bf16", "f32"]
// requires  = ["rank + rope_depth <= 600", "sequences <= 65535"]
//
// [define]
// BF16         = "dtype == 'bf16'"
// VECTOR       = "lanes"
// RANK_COLUMNS = "rank // lanes"
// ROPE_COLUMNS = "rope_depth // lanes"
// KEY_DEPTH    = "key_depth"
// PAGE_SIZE    = "page_size"
// HEAD_PARTS   = "cdiv(heads, WARPS * HEADS)"
// STEPS        = "cdiv(keys, TILE)"
//
// [workspace]
// averages   = "max(1, min(STEPS, PER_SM * sm_count // (sequences * HEAD_PARTS))) * sequences * heads * rank"
// statistics = "max(1, min(STEPS, PER_SM * sm_count // (sequences * HEAD_PARTS))) * sequences * heads * 2"
//
// [[launch]]
// kernel = "mla_split"
// grid   = ["HEAD_PARTS", "sequences", "max(1, min(STEPS, PER_SM * sm_count // (sequences * HEAD_PARTS)))"]
// block  = [32, "WARPS"]
// args   = [
//     "q_nope", "q_pe", "ckv", "kpe", "page_table", "lengths", "averages", "statistics", "heads", "pages_per_sequence",
// ]
//
// [[launch]]
// kernel = "mla_merge"
// grid   = ["heads", "sequences"]
// block  = ["min(1024, 32 * cdiv(rank, 32))"]
// args   = ["averages", "statistics", "out", "max(1, min(STEPS, PER_SM * sm_count // (sequences * HEAD_PARTS)))"]
// ///
//
// A block processes a part of a sequence's tokens. It writes its average with the maximum and the sum of its weights,
// and the second kernel merges the partial results of each head. Limit: products on CUDA cores. With 16 heads, a token
// in bf16 costs 35,000 FLOP and 1,152 bytes: DRAM delivers it faster than CUDA cores compute it. Idea: Dao et al.,
// "Flash-Decoding for long-context inference" (2023).
#include <opbench/decode_parts.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Packed<T, VECTOR> Pack;
constexpr int COLUMNS = RANK_COLUMNS + ROPE_COLUMNS, RANK = RANK_COLUMNS * VECTOR;
constexpr int CHUNKS = (COLUMNS + 31) / 32, RANK_CHUNKS = (RANK_COLUMNS + 31) / 32;

__device__ __forceinline__ float element(const Pack& pack, int i) { return lane_of<T>(pack, i); }

// Copy `count` tokens of a sequence into shared memory; a row of `tile` has the compressed row, then the rotated key.
__device__ __forceinline__ void copy_tokens(Pack (*tile)[COLUMNS], const T* ckv, const T* kpe, const int* page_table,
                                            int first, int count) {
    for (int i = threadIdx.y * 32 + threadIdx.x; i < count * COLUMNS; i += 32 * WARPS) {
        const int token = first + i / COLUMNS, column = i % COLUMNS;
        const size_t row = (size_t)page_table[token / PAGE_SIZE] * PAGE_SIZE + token % PAGE_SIZE;
        tile[i / COLUMNS][column] =
            column < RANK_COLUMNS ? reinterpret_cast<const Pack*>(ckv)[row * RANK_COLUMNS + column]
                                  : reinterpret_cast<const Pack*>(kpe)[row * ROPE_COLUMNS + column - RANK_COLUMNS];
    }
}

// The queries of a warp and their averages so far; a lane has the columns lane, lane + 32, ...
struct Queries {
    float query[HEADS][CHUNKS * VECTOR], average[HEADS][RANK_CHUNKS * VECTOR] = {}, maximum[HEADS], sum[HEADS] = {};

    __device__ __forceinline__ void load(const T* q_nope, const T* q_pe, size_t row, int count) {
        const float scale = rsqrtf((float)KEY_DEPTH);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            maximum[h] = no_score;
            const size_t at = row + min(h, count - 1);
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                const int column = c * 32 + threadIdx.x;
                Pack pack = {};
                if (column < RANK_COLUMNS)
                    pack = reinterpret_cast<const Pack*>(q_nope)[at * RANK_COLUMNS + column];
                else if (column < COLUMNS)
                    pack = reinterpret_cast<const Pack*>(q_pe)[at * ROPE_COLUMNS + column - RANK_COLUMNS];
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) query[h][c * VECTOR + i] = element(pack, i) * scale;
            }
        }
    }

    // Add a token to the averages. This lane's columns of the token stay in registers from the score to the average.
    __device__ __forceinline__ void add(const Pack* row) {
        float key[CHUNKS * VECTOR];
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const int column = c * 32 + threadIdx.x;
            Pack pack = {};
            if (column < COLUMNS) pack = row[column];
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) key[c * VECTOR + i] = element(pack, i);
        }
        float score[HEADS] = {};
#pragma unroll
        for (int h = 0; h < HEADS; ++h)
#pragma unroll
            for (int i = 0; i < CHUNKS * VECTOR; ++i) score[h] += query[h][i] * key[i];
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
#pragma unroll
            for (int h = 0; h < HEADS; ++h) score[h] += __shfl_xor_sync(0xffffffffu, score[h], step);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            const float larger = fmaxf(maximum[h], score[h]);
            const float factor = __expf(maximum[h] - larger), weight = __expf(score[h] - larger);
            maximum[h] = larger;
            sum[h] = sum[h] * factor + weight;
#pragma unroll
            for (int i = 0; i < RANK_CHUNKS * VECTOR; ++i) average[h][i] = average[h][i] * factor + weight * key[i];
        }
    }
};

// q_nope, out [sequences][heads][rank]; q_pe [sequences][heads][rope_depth]; ckv [pages][page_size][rank];
// kpe [pages][page_size][rope_depth]; page_table [sequences][pages_per_sequence]; lengths [sequences]
// averages [sequences][heads][parts][rank], not yet divided by their sums; statistics [sequences][heads][parts]:
// maximum and sum
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    mla_split(const T* __restrict__ q_nope, const T* __restrict__ q_pe, const T* __restrict__ ckv,
              const T* __restrict__ kpe, const int* __restrict__ page_table, const int* __restrict__ lengths,
              float* __restrict__ averages, float2* __restrict__ statistics, int heads, int pages_per_sequence) {
    __shared__ Pack tile[TILE][COLUMNS];
    const int sequence = blockIdx.y, length = lengths[sequence], part = blockIdx.z, parts = gridDim.z;
    const int head = (blockIdx.x * WARPS + threadIdx.y) * HEADS, count = min(HEADS, heads - head);
    const size_t row = (size_t)sequence * heads + head;
    const int share = ((length + parts - 1) / parts + TILE - 1) / TILE * TILE;
    const int end = min((part + 1) * share, length);
    page_table += (size_t)sequence * pages_per_sequence;
    Queries own;
    if (count > 0) own.load(q_nope, q_pe, row, count);
    for (int first = part * share; first < end; first += TILE) {
        const int tokens = min(TILE, end - first);
        copy_tokens(tile, ckv, kpe, page_table, first, tokens);
        __syncthreads();
        if (count > 0)
            for (int token = 0; token < tokens; ++token) own.add(tile[token]);
        __syncthreads();  // all threads have read the tile before the next one overwrites it
    }
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        if (h >= count) break;
        const size_t at = (row + h) * parts + part;
        if (threadIdx.x == 0) statistics[at] = make_float2(own.maximum[h], own.sum[h]);
#pragma unroll
        for (int c = 0; c < RANK_CHUNKS; ++c) {
            const int column = c * 32 + threadIdx.x;
            if (column >= RANK_COLUMNS) break;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) averages[at * RANK + column * VECTOR + i] = own.average[h][c * VECTOR + i];
        }
    }
}

extern "C" __global__ void mla_merge(const float* __restrict__ averages, const float2* __restrict__ statistics,
                                     T* __restrict__ out, int parts) {
    merge_parts<RANK>(averages, statistics, out, parts);
}
