// /// opbench
// title     = "shared-memory tile of tokens, loaded once for all heads of a block"
// builds_on = "online"
// mechanism = [
//     "coalesced", "warp_shuffle", "fewer_passes", "compile_time_sizes", "shared_memory_tile", "register_tile",
//     "vectorised_access",
// ]
// tune      = { WARPS = [8, 4], HEADS = [2, 1, 4], TILE = [16, 8] }
// where     = ["HEADS == 2 or (TILE == 16 and WARPS == 8)"]
// supports.ragged = ["no", "yes"]
// supports.dtype  = ["bf16", "f32"]
// requires  = ["rank + rope_depth <= 600", "sequences <= 65535"]
//
// [define]
// BF16         = "dtype == 'bf16'"
// VECTOR       = "lanes"
// BYTES        = "(2 if dtype == 'bf16' else 4) * VECTOR"
// PACK         = "'unsigned short' if BYTES == 2 else 'unsigned' if BYTES == 4 else 'uint2' if BYTES == 8 else 'uint4'"
// RANK_COLUMNS = "rank // lanes"
// ROPE_COLUMNS = "rope_depth // lanes"
// KEY_DEPTH    = "key_depth"
// PAGE_SIZE    = "page_size"
//
// [[launch]]
// kernel = "mla_shared_rows"
// grid   = ["cdiv(heads, WARPS * HEADS)", "sequences"]
// block  = [32, "WARPS"]
// args   = ["q_nope", "q_pe", "ckv", "kpe", "page_table", "lengths", "out", "heads", "pages_per_sequence"]
// ///
//
// All heads share the cache, which is the purpose of latent attention: a token that is read once is used for WARPS *
// HEADS heads. A warp reads a row from shared memory once for its HEADS heads, whose shuffles are independent. Limits:
// if a block computes all heads, there are only as many blocks as sequences; copies and sums alternate at the barriers,
// so they do not overlap.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr float NONE = -1e30f;  // below any score; unlike -infinity, its difference from itself is 0, not NaN
constexpr int COLUMNS = RANK_COLUMNS + ROPE_COLUMNS;
constexpr int CHUNKS = (COLUMNS + 31) / 32, RANK_CHUNKS = (RANK_COLUMNS + 31) / 32;
typedef PACK Pack;  // the vector of one load or store

__device__ __forceinline__ float element(const Pack& pack, int i) {
    return (float)reinterpret_cast<const T*>(&pack)[i];
}

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
            maximum[h] = NONE;
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
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    mla_shared_rows(const T* __restrict__ q_nope, const T* __restrict__ q_pe, const T* __restrict__ ckv,
                    const T* __restrict__ kpe, const int* __restrict__ page_table, const int* __restrict__ lengths,
                    T* __restrict__ out, int heads, int pages_per_sequence) {
    __shared__ Pack tile[TILE][COLUMNS];
    const int sequence = blockIdx.y, length = lengths[sequence];
    const int head = (blockIdx.x * WARPS + threadIdx.y) * HEADS, count = min(HEADS, heads - head);
    const size_t row = (size_t)sequence * heads + head;
    page_table += (size_t)sequence * pages_per_sequence;
    Queries own;
    if (count > 0) own.load(q_nope, q_pe, row, count);
    for (int first = 0; first < length; first += TILE) {
        const int tokens = min(TILE, length - first);
        copy_tokens(tile, ckv, kpe, page_table, first, tokens);
        __syncthreads();
        if (count > 0)
            for (int token = 0; token < tokens; ++token) own.add(tile[token]);
        __syncthreads();  // all threads have read the tile before the next one overwrites it
    }
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        if (h >= count) break;
#pragma unroll
        for (int c = 0; c < RANK_CHUNKS; ++c) {
            const int column = c * 32 + threadIdx.x;
            if (column >= RANK_COLUMNS) break;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i)
                out[(row + h) * RANK_COLUMNS * VECTOR + column * VECTOR + i] =
                    (T)(own.average[h][c * VECTOR + i] / own.sum[h]);
        }
    }
}
