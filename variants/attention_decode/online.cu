// /// opbench
// title     = "online softmax: one warp per sequence and head, one pass; each new maximum rescales the result"
// builds_on = "block_per_head"
// mechanism = ["coalesced", "warp_shuffle", "fewer_passes", "compile_time_sizes"]
// tune      = { WARPS = [4, 2, 8] }
// define.BF16      = "dtype == 'bf16'"
// define.DEPTH     = "depth"
// define.PAGE_SIZE = "page_size"
// supports.ragged = ["no", "yes"]
// supports.dtype  = ["f32", "bf16"]
// requires  = ["depth <= 256", "sequences <= 65535"]
//
// [[launch]]
// kernel = "decode_online"
// grid   = ["cdiv(heads, WARPS)", "sequences"]
// block  = [32, "WARPS"]
// args   = ["q", "k", "v", "page_table", "lengths", "out", "heads", "kv_heads", "pages_per_sequence"]
// ///
//
// The lanes of a warp hold one query and its average. For each token, five shuffles add up the score; then the value is
// added with the exponential of the score as its weight. Neither scores nor weights are stored, and a warp reads whole
// rows. Limits: there are only as many warps as pairs of sequence and head, too few to keep DRAM busy; a warp has only
// two rows in flight; for each token five shuffles depend on one another. Idea: Milakov and Gimelshein, "Online
// normalizer calculation for softmax" (2018).
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int ITEMS = (DEPTH + 31) / 32;

// q, out [sequences][heads][DEPTH]; k, v [pages][PAGE_SIZE][kv_heads][DEPTH];
// page_table [sequences][pages_per_sequence]; lengths [sequences]
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    decode_online(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                  const int* __restrict__ page_table, const int* __restrict__ lengths, T* __restrict__ out, int heads,
                  int kv_heads, int pages_per_sequence) {
    const int head = blockIdx.x * WARPS + threadIdx.y, sequence = blockIdx.y, lane = threadIdx.x;
    if (head >= heads) return;  // true for whole warps only, so shuffles stay safe
    q += ((size_t)sequence * heads + head) * DEPTH;
    out += ((size_t)sequence * heads + head) * DEPTH;
    page_table += (size_t)sequence * pages_per_sequence;
    const int length = lengths[sequence], kv_head = head / (heads / kv_heads);
    float row[ITEMS], accumulator[ITEMS] = {};
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int d = i * 32 + lane;
        row[i] = d < DEPTH ? (float)q[d] * rsqrtf((float)DEPTH) : 0.0f;
    }
    float running_maximum = __int_as_float(0xff800000), sum = 0.0f;  // -infinity
    for (int token = 0; token < length; ++token) {
        const size_t page = page_table[token / PAGE_SIZE];
        const size_t at = ((page * PAGE_SIZE + token % PAGE_SIZE) * kv_heads + kv_head) * DEPTH + lane;
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
}
