// /// opbench
// title     = "tensor cores (mma.sync) with heads as rows; cp.async loads the next tokens"
// builds_on = "split"
// mechanism = [
//     "coalesced", "vectorised_access", "warp_shuffle", "fewer_passes", "compile_time_sizes", "shared_memory_tile",
//     "register_tile", "double_buffer", "async_copy", "bank_conflict_free", "split_k", "sliced_k", "tensor_core",
// ]
// product   = "bf16"
// tune      = { BM = [16, 64], BN = [32, 16], WM = [16, 32], WK = [4, 2] }
// where     = ["BM == 64 or WM == 16 and WK == 4", "BM == 16 or BN == 16 or WK == 2", "WM == 16 or WK == 4"]
// tile      = { m = "BM", n = "RANK" }
// supports.ragged = ["no", "yes"]
// supports.dtype  = ["bf16"]
// requires  = ["rank % 16 == 0", "rope_depth % 16 == 0", "rank + rope_depth <= 576", "sequences <= 65535"]
// compute_capability = "8.0"
//
// [define]
// RANK        = "rank"
// ROPE_DEPTH  = "rope_depth"
// KEY_DEPTH   = "key_depth"
// PAGE_SIZE   = "page_size"
// STAGES      = "5 if BN == 16 else 2 if BM == 16 else 3"
// PER_SM      = "2 if BM == 16 else 1"
// STAGE_BYTES = "cdiv(rank + rope_depth, 64) * BN * 128"
// HEAD_PARTS  = "cdiv(heads, BM)"
// STEPS       = "cdiv(keys, BN)"
//
// [workspace]
// averages   = "max(1, min(STEPS, PER_SM * sm_count // (sequences * HEAD_PARTS))) * sequences * heads * rank"
// statistics = "max(1, min(STEPS, PER_SM * sm_count // (sequences * HEAD_PARTS))) * sequences * heads * 2"
//
// [[launch]]
// kernel = "mla_mma"
// grid   = ["HEAD_PARTS", "sequences", "max(1, min(STEPS, PER_SM * sm_count // (sequences * HEAD_PARTS)))"]
// block  = ["BM // WM * WK * 32"]
// shared = "STAGES * STAGE_BYTES + WK * BM * BN * 4"
// args   = [
//     "q_nope", "q_pe", "ckv", "kpe", "page_table", "lengths", "averages", "statistics", "heads", "pages_per_sequence",
// ]
//
// [[launch]]
// kernel = "mla_mma_merge"
// grid   = ["heads", "sequences"]
// block  = ["min(1024, 32 * cdiv(rank, 32))"]
// args   = ["averages", "statistics", "out", "max(1, min(STEPS, PER_SM * sm_count // (sequences * HEAD_PARTS)))"]
// ///
//
// All heads share the row of a token. So a step is a matrix product of BM heads and BN tokens, and then a product of
// their weights and the same rows. The WK warps that share heads divide the depth: each keeps its part of the queries,
// and its columns of the averages, in registers. The warps add up their partial scores in shared memory. Then each warp
// has all scores, in the register layout that the second product needs for its weights. STAGES tiles of tokens are in
// flight. Limits: with 16 heads, DRAM; with 64 and more, the fragments that each warp reads from shared memory for WM
// heads, and barriers. Idea: DeepSeek, "FlashMLA" (2025), and Dao et al., "Flash-Decoding for long-context inference"
// (2023).
#include <opbench/activations.cuh>
#include <opbench/bf16.cuh>
#include <opbench/decode_parts.cuh>
#include <opbench/mma.cuh>
#include <opbench/tile.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

constexpr int TM = WM / 16, THREADS = BM / WM * WK * 32, TILES = BN / 8;
constexpr int RANK_CHUNKS = RANK / 8, ROW_CHUNKS = (RANK + ROPE_DEPTH) / 8, GROUPS = (ROW_CHUNKS + chunks - 1) / chunks;
// slices of 16 elements of a row: for keys (SLICES) and for values (PAIRS)
constexpr int SLICES = ROW_CHUNKS / 2, PAIRS = RANK_CHUNKS / 2;
constexpr int OWN_SLICES = (SLICES + WK - 1) / WK, OWN_PAIRS = (PAIRS + WK - 1) / WK;
constexpr float LOG2_E = 1.44269504f;
static_assert(STAGE_BYTES == GROUPS * BN * row_bytes);

// Return the offset of a chunk of a token. Every eight chunks form a tile of BN rows of 128 bytes.
__device__ __forceinline__ int offset_of(int token, int chunk) {
    return chunk / chunks * BN * row_bytes + swizzled_offset(token, chunk % chunks);
}

// Return whether the part exists; WK warps take the parts in turn.
template <int count>
__device__ __forceinline__ bool exists(int part) {
    return count % WK == 0 || part < count;
}

// Load BN tokens from `first` on into shared memory: the compressed row, then the rotated key; tokens from `end` on
// become zeros.
__device__ __forceinline__ void copy_tokens(unsigned to, const unsigned short* ckv, const unsigned short* kpe,
                                            const int* page_table, int first, int end) {
    const int chunk = threadIdx.x % chunks;
#pragma unroll
    for (int row = threadIdx.x / chunks; row < BN; row += THREADS / chunks) {
        const int token = first + row, bytes = token < end ? 16 : 0;
        const size_t at = bytes ? (size_t)page_table[token / PAGE_SIZE] * PAGE_SIZE + token % PAGE_SIZE : 0;
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            const int column = group * chunks + chunk;
            const unsigned target = to + group * BN * row_bytes + swizzled_offset(row, chunk);
            if (column < RANK_CHUNKS)
                copy_chunk(target, ckv + at * RANK + column * 8, bytes);
            else if (column < ROW_CHUNKS)
                copy_chunk(target, kpe + at * ROPE_DEPTH + (column - RANK_CHUNKS) * 8, bytes);
        }
    }
    commit();
}

// q_nope [sequences][heads][RANK]; q_pe [sequences][heads][ROPE_DEPTH]; ckv [pages][PAGE_SIZE][RANK]; kpe
// [pages][PAGE_SIZE][ROPE_DEPTH]; page_table [sequences][pages_per_sequence]; lengths [sequences]; averages
// [sequences][heads][parts][RANK], not yet divided by their sums; statistics [sequences][heads][parts]: maximum and sum
extern "C" __global__ void __launch_bounds__(THREADS, PER_SM)
    mla_mma(const unsigned short* __restrict__ q_nope, const unsigned short* __restrict__ q_pe,
            const unsigned short* __restrict__ ckv, const unsigned short* __restrict__ kpe,
            const int* __restrict__ page_table, const int* __restrict__ lengths, float* __restrict__ averages,
            float2* __restrict__ statistics, int heads, int pages_per_sequence) {
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned memory = (unsigned)__cvta_generic_to_shared(shared);
    const int lane = threadIdx.x % 32, warp_k = threadIdx.x / 32 % WK, warp_m = threadIdx.x / 32 / WK;
    float4* const partial = reinterpret_cast<float4*>(shared + STAGES * STAGE_BYTES) + warp_m * WK * TM * TILES * 32;
    const int sequence = blockIdx.y, length = lengths[sequence], part = blockIdx.z, parts = gridDim.z;
    const int share = ((length + parts - 1) / parts + BN - 1) / BN * BN;
    const int first = min(part * share, length), end = min(first + share, length), steps = (end - first + BN - 1) / BN;
    page_table += (size_t)sequence * pages_per_sequence;

    auto fill = [&](int step) {
        if (step < steps)
            copy_tokens(memory + step % STAGES * STAGE_BYTES, ckv, kpe, page_table, first + step * BN, end);
        else
            commit();
    };
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step) fill(step);

    const int top = blockIdx.x * BM + warp_m * WM + lane / 4;  // the thread's heads are top, top + 8, ...
    unsigned query[OWN_SLICES][TM][4];
#pragma unroll
    for (int own = 0; own < OWN_SLICES; ++own)
#pragma unroll
        for (int m = 0; m < TM; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int slice = own * WK + warp_k, head = top + m * 16 + e % 2 * 8;
                const int column = slice * 16 + e / 2 * 8 + lane % 4 * 2;
                const size_t row = (size_t)sequence * heads + head;
                query[own][m][e] = 0;
                if (exists<SLICES>(slice) && head < heads)
                    query[own][m][e] = *reinterpret_cast<const unsigned*>(
                        column < RANK ? q_nope + row * RANK + column : q_pe + row * ROPE_DEPTH + column - RANK);
            }

    const float natural_scale = rsqrtf((float)KEY_DEPTH), scale = LOG2_E * natural_scale;
    float average[TM][OWN_PAIRS][8] = {}, maximum[TM][2], sum[TM][2] = {};
#pragma unroll
    for (int m = 0; m < TM; ++m) maximum[m][0] = maximum[m][1] = no_score;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const unsigned tile = memory + step % STAGES * STAGE_BYTES;
        wait<STAGES - 2>();
        __syncthreads();  // this tile has arrived, and all threads have read the previous tile
        fill(step + STAGES - 1);
        float score[TM][TILES][4] = {};
#pragma unroll
        for (int own = 0; own < OWN_SLICES; ++own) {
            const int slice = own * WK + warp_k;
            if (!exists<SLICES>(slice)) break;
#pragma unroll
            for (int pair = 0; pair < TILES / 2; ++pair) {
                unsigned key[4];
                load_matrices(key, tile + offset_of(pair * 16 + lane % 8 + lane / 16 * 8, slice * 2 + lane / 8 % 2));
#pragma unroll
                for (int m = 0; m < TM; ++m) {
                    mma_bf16(score[m][pair * 2], query[own][m], key[0], key[1]);
                    mma_bf16(score[m][pair * 2 + 1], query[own][m], key[2], key[3]);
                }
            }
        }
#pragma unroll
        for (int m = 0; m < TM; ++m)
#pragma unroll
            for (int n = 0; n < TILES; ++n)
                partial[((warp_k * TM + m) * TILES + n) * 32 + lane] =
                    make_float4(score[m][n][0], score[m][n][1], score[m][n][2], score[m][n][3]);
        __syncthreads();
        const int left = end - first - step * BN;
#pragma unroll
        for (int m = 0; m < TM; ++m) {
#pragma unroll
            for (int n = 0; n < TILES; ++n) {
                float4 total = partial[(m * TILES + n) * 32 + lane];
#pragma unroll
                for (int k = 1; k < WK; ++k) {  // all warps add in the same order, so that they have the same scores
                    const float4 other = partial[((k * TM + m) * TILES + n) * 32 + lane];
                    total.x += other.x, total.y += other.y, total.z += other.z, total.w += other.w;
                }
                const int token = n * 8 + lane % 4 * 2;
                const float none = __int_as_float(0xff800000);  // -infinity
                score[m][n][0] = token < left ? total.x : none, score[m][n][1] = token + 1 < left ? total.y : none;
                score[m][n][2] = token < left ? total.z : none, score[m][n][3] = token + 1 < left ? total.w : none;
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float larger = maximum[m][half];
#pragma unroll
                for (int n = 0; n < TILES; ++n)
                    larger = fmaxf(larger, fmaxf(score[m][n][half * 2], score[m][n][half * 2 + 1]));
                larger = fmaxf(larger, __shfl_xor_sync(0xffffffffu, larger, 1));
                larger = fmaxf(larger, __shfl_xor_sync(0xffffffffu, larger, 2));
                const float factor = power_of_two((maximum[m][half] - larger) * scale), shift = larger * scale;
                maximum[m][half] = larger;
                sum[m][half] *= factor;
#pragma unroll
                for (int own = 0; own < OWN_PAIRS; ++own)
#pragma unroll
                    for (int i = 0; i < 8; i += 4)
                        average[m][own][i + half * 2] *= factor, average[m][own][i + half * 2 + 1] *= factor;
#pragma unroll
                for (int n = 0; n < TILES; ++n)
#pragma unroll
                    for (int e = half * 2; e < half * 2 + 2; ++e) {
                        score[m][n][e] = power_of_two(score[m][n][e] * scale - shift);
                        sum[m][half] += score[m][n][e];
                    }
            }
        }
#pragma unroll
        for (int slice = 0; slice < BN / 16; ++slice) {
            unsigned weights[TM][4];
#pragma unroll
            for (int m = 0; m < TM; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    weights[m][e] =
                        pack_bf16(score[m][slice * 2 + e / 2][e % 2 * 2], score[m][slice * 2 + e / 2][e % 2 * 2 + 1]);
#pragma unroll
            for (int own = 0; own < OWN_PAIRS; ++own) {
                const int pair = own * WK + warp_k;
                if (!exists<PAIRS>(pair)) break;
                unsigned value[4];
                load_matrices_transposed(value, tile + offset_of(slice * 16 + lane % 16, pair * 2 + lane / 16));
#pragma unroll
                for (int m = 0; m < TM; ++m) {
                    mma_bf16(reinterpret_cast<float (&)[4]>(average[m][own][0]), weights[m], value[0], value[1]);
                    mma_bf16(reinterpret_cast<float (&)[4]>(average[m][own][4]), weights[m], value[2], value[3]);
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < TM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float row_sum = sum[m][half];
            row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);
            row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
            const int head = top + m * 16 + half * 8;
            if (head >= heads) continue;
            const size_t at = ((size_t)sequence * heads + head) * parts + part;
            if (warp_k == 0 && lane % 4 == 0) statistics[at] = make_float2(maximum[m][half] * natural_scale, row_sum);
#pragma unroll
            for (int own = 0; own < OWN_PAIRS; ++own) {
                const int pair = own * WK + warp_k;
                if (!exists<PAIRS>(pair)) break;
#pragma unroll
                for (int i = 0; i < 8; i += 4)
                    *reinterpret_cast<float2*>(averages + at * RANK + pair * 16 + i * 2 + lane % 4 * 2) =
                        make_float2(average[m][own][i + half * 2], average[m][own][i + half * 2 + 1]);
            }
        }
}

extern "C" __global__ void mla_mma_merge(const float* __restrict__ averages, const float2* __restrict__ statistics,
                                         Element<true>* __restrict__ out, int parts) {
    merge_parts<RANK>(averages, statistics, out, parts);
}
