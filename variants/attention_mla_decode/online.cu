// /// opbench
// title     = "online softmax: one warp per sequence and head; each cache row is read once, as key and as value"
// builds_on = "block_per_head"
// mechanism = ["coalesced", "warp_shuffle", "fewer_passes", "compile_time_sizes"]
// tune      = { WARPS = [4, 2, 8] }
// supports.ragged = ["no", "yes"]
// supports.dtype  = ["bf16", "f32"]
// requires  = ["rank <= 1024", "rope_depth <= 256", "sequences <= 65535"]
//
// [define]
// BF16       = "dtype == 'bf16'"
// RANK       = "rank"
// ROPE_DEPTH = "rope_depth"
// KEY_DEPTH  = "key_depth"
// PAGE_SIZE  = "page_size"
//
// [[launch]]
// kernel = "mla_online"
// grid   = ["cdiv(heads, WARPS)", "sequences"]
// block  = [32, "WARPS"]
// args   = ["q_nope", "q_pe", "ckv", "kpe", "page_table", "lengths", "out", "heads", "pages_per_sequence"]
// ///
//
// The lanes of a warp hold one query and its average. The compressed row of a token stays in registers from the score
// to the average, which is rescaled to each new maximum. So neither scores nor weights are stored. Limits: every head
// still reads the whole cache; a warp has only one row in flight, and for each token five shuffles depend on one
// another. Idea: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int ITEMS = (RANK + 31) / 32, ROPE_ITEMS = (ROPE_DEPTH + 31) / 32;

// q_nope, out [sequences][heads][rank]; q_pe [sequences][heads][rope_depth]; ckv [pages][page_size][rank];
// kpe [pages][page_size][rope_depth]; page_table [sequences][pages_per_sequence]; lengths [sequences]
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    mla_online(const T* __restrict__ q_nope, const T* __restrict__ q_pe, const T* __restrict__ ckv,
               const T* __restrict__ kpe, const int* __restrict__ page_table, const int* __restrict__ lengths,
               T* __restrict__ out, int heads, int pages_per_sequence) {
    const int head = blockIdx.x * WARPS + threadIdx.y, sequence = blockIdx.y, lane = threadIdx.x;
    if (head >= heads) return;  // true for whole warps only, so shuffles stay safe
    const size_t row_of_query = (size_t)sequence * heads + head;
    q_nope += row_of_query * RANK, q_pe += row_of_query * ROPE_DEPTH, out += row_of_query * RANK;
    page_table += (size_t)sequence * pages_per_sequence;
    const int length = lengths[sequence];
    const float scale = rsqrtf((float)KEY_DEPTH);
    float query[ITEMS], rope[ROPE_ITEMS], average[ITEMS] = {};
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) query[i] = i * 32 + lane < RANK ? (float)q_nope[i * 32 + lane] * scale : 0.0f;
#pragma unroll
    for (int i = 0; i < ROPE_ITEMS; ++i)
        rope[i] = i * 32 + lane < ROPE_DEPTH ? (float)q_pe[i * 32 + lane] * scale : 0.0f;
    float running_maximum = __int_as_float(0xff800000), sum = 0.0f;  // -infinity
    for (int token = 0; token < length; ++token) {
        const size_t row = (size_t)page_table[token / PAGE_SIZE] * PAGE_SIZE + token % PAGE_SIZE;
        float key[ITEMS], score = 0.0f;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            key[i] = i * 32 + lane < RANK ? (float)ckv[row * RANK + i * 32 + lane] : 0.0f;
            score += query[i] * key[i];
        }
#pragma unroll
        for (int i = 0; i < ROPE_ITEMS; ++i)
            if (i * 32 + lane < ROPE_DEPTH) score += rope[i] * (float)kpe[row * ROPE_DEPTH + i * 32 + lane];
#pragma unroll
        for (int step = 16; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffffu, score, step);
        const float previous_maximum = running_maximum;
        running_maximum = fmaxf(running_maximum, score);
        const float factor = __expf(previous_maximum - running_maximum), weight = __expf(score - running_maximum);
        sum = sum * factor + weight;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) average[i] = average[i] * factor + weight * key[i];
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
        if (i * 32 + lane < RANK) out[i * 32 + lane] = (T)(average[i] / sum);
}
