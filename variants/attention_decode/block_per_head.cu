// /// opbench
// title     = "one block per sequence and head, one thread per key; all scores in shared memory"
// mechanism = ["shared_memory_tile"]
// tune      = { BLOCK = [256, 128, 512] }
// define.BF16 = "dtype == 'bf16'"
// supports.ragged = ["no", "yes"]
// supports.dtype  = ["f32", "bf16"]
// requires  = ["keys <= 12000", "sequences <= 65535"]
//
// [[launch]]
// kernel = "decode_block_per_head"
// grid   = ["heads", "sequences"]
// block  = ["BLOCK"]
// shared = "4 * (keys + BLOCK)"
// args   = [
//     "q", "k", "v", "page_table", "lengths", "out", "kv_heads", "depth", "page_size", "pages_per_sequence",
// ]
// ///
//
// Each thread computes whole scores, with one lookup in the page table per score. The block finds the maximum and the
// sum of the exponentials by a tree reduction in shared memory. Then each thread computes whole elements of the
// average. Limits: the threads of a warp read rows that are far apart in memory; every query head reads the keys and
// values of its group again; in the second half, only as many threads work as a row has elements.
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

// q, out [sequences][heads][depth]; k, v [pages][page_size][kv_heads][depth];
// page_table [sequences][pages_per_sequence]; lengths [sequences]
extern "C" __global__ void __launch_bounds__(BLOCK)
    decode_block_per_head(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                          const int* __restrict__ page_table, const int* __restrict__ lengths, T* __restrict__ out,
                          int kv_heads, int depth, int page_size, int pages_per_sequence) {
    extern __shared__ float weights[];
    const int head = blockIdx.x, heads = gridDim.x, sequence = blockIdx.y, length = lengths[sequence];
    float* const partial = weights + length;  // [BLOCK]
    const int kv_head = head / (heads / kv_heads);
    q += ((size_t)sequence * heads + head) * depth;
    out += ((size_t)sequence * heads + head) * depth;
    page_table += (size_t)sequence * pages_per_sequence;
    const float scale = rsqrtf((float)depth);
    float maximum = __int_as_float(0xff800000);  // -infinity
    for (int token = threadIdx.x; token < length; token += BLOCK) {
        const size_t row = (size_t)page_table[token / page_size] * page_size + token % page_size;
        const T* const key = k + (row * kv_heads + kv_head) * depth;
        float score = 0.0f;
        for (int d = 0; d < depth; ++d) score += (float)q[d] * (float)key[d];
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
    for (int d = threadIdx.x; d < depth; d += BLOCK) {
        float average = 0.0f;
        for (int token = 0; token < length; ++token) {
            const size_t row = (size_t)page_table[token / page_size] * page_size + token % page_size;
            average += weights[token] * (float)v[(row * kv_heads + kv_head) * depth + d];
        }
        out[d] = (T)(average / sum);
    }
}
