// /// opbench
// title     = "one block per sequence and head, one thread per token; all scores in shared memory"
// mechanism = ["shared_memory_tile"]
// tune      = { BLOCK = [256, 128, 512] }
// define.BF16 = "dtype == 'bf16'"
// supports.ragged = ["no", "yes"]
// supports.dtype  = ["bf16", "f32"]
// requires  = ["keys <= 12000 - BLOCK", "sequences <= 65535"]
//
// [[launch]]
// kernel = "mla_block_per_head"
// grid   = ["heads", "sequences"]
// block  = ["BLOCK"]
// shared = "4 * (keys + BLOCK)"
// args   = [
//     "q_nope", "q_pe", "ckv", "kpe", "page_table", "lengths", "out", "rank", "rope_depth", "key_depth", "page_size",
//     "pages_per_sequence",
// ]
// ///
//
// Each thread computes whole scores: the compressed row times q_nope, plus the rotated key times q_pe. The block finds
// the maximum and the sum of the exponentials by a tree reduction in shared memory. Then each thread computes whole
// elements of the average of the compressed rows. Limits: the threads of a warp read rows that are far apart in memory;
// every head reads the whole cache of its sequence again, twice, although all heads share it.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// Return the maximum or the sum of `value` over the threads of the block, in each of them.
template <bool maximum>
__device__ float over_block(float value, float* shared) {
    shared[threadIdx.x] = value;
    __syncthreads();
    for (int distance = BLOCK / 2; distance > 0; distance /= 2) {
        if (threadIdx.x < distance) {
            const float own = shared[threadIdx.x], other = shared[threadIdx.x + distance];
            shared[threadIdx.x] = maximum ? fmaxf(own, other) : own + other;
        }
        __syncthreads();
    }
    const float result = shared[0];
    __syncthreads();  // all threads have read `shared` before it is used again
    return result;
}

// q_nope, out [sequences][heads][rank]; q_pe [sequences][heads][rope_depth]; ckv [pages][page_size][rank];
// kpe [pages][page_size][rope_depth]; page_table [sequences][pages_per_sequence]; lengths [sequences]
extern "C" __global__ void __launch_bounds__(BLOCK)
    mla_block_per_head(const T* __restrict__ q_nope, const T* __restrict__ q_pe, const T* __restrict__ ckv,
                       const T* __restrict__ kpe, const int* __restrict__ page_table, const int* __restrict__ lengths,
                       T* __restrict__ out, int rank, int rope_depth, int key_depth, int page_size,
                       int pages_per_sequence) {
    extern __shared__ float weights[];
    const int head = blockIdx.x, heads = gridDim.x, sequence = blockIdx.y, length = lengths[sequence];
    float* const partial = weights + length;  // [BLOCK]
    const size_t query = (size_t)sequence * heads + head;
    q_nope += query * rank, q_pe += query * rope_depth, out += query * rank;
    page_table += (size_t)sequence * pages_per_sequence;
    const float scale = rsqrtf((float)key_depth);
    float maximum = __int_as_float(0xff800000);  // -infinity
    for (int token = threadIdx.x; token < length; token += BLOCK) {
        const size_t row = (size_t)page_table[token / page_size] * page_size + token % page_size;
        float score = 0.0f;
        for (int d = 0; d < rank; ++d) score += (float)q_nope[d] * (float)ckv[row * rank + d];
        for (int d = 0; d < rope_depth; ++d) score += (float)q_pe[d] * (float)kpe[row * rope_depth + d];
        weights[token] = score * scale;
        maximum = fmaxf(maximum, score * scale);
    }
    maximum = over_block<true>(maximum, partial);
    float sum = 0.0f;
    for (int token = threadIdx.x; token < length; token += BLOCK) {
        weights[token] = __expf(weights[token] - maximum);
        sum += weights[token];
    }
    sum = over_block<false>(sum, partial);  // its barriers make all weights visible
    for (int d = threadIdx.x; d < rank; d += BLOCK) {
        float average = 0.0f;
        for (int token = 0; token < length; ++token) {
            const size_t row = (size_t)page_table[token / page_size] * page_size + token % page_size;
            average += weights[token] * (float)ckv[row * rank + d];
        }
        out[d] = (T)(average / sum);
    }
}
