// /// opbench
// title = "one block per row, k passes: each finds the largest element below the previous one"
// mechanism = ["coalesced"]
// tune  = { BLOCK = [512, 1024] }
// supports = { dtype = ["f32", "bf16"] }
// define = { BF16 = "dtype == 'bf16'" }
//
// [[launch]]
// kernel = "top_k_passes"
// grid   = ["rows"]
// block  = ["BLOCK"]
// args   = ["x", "values", "indices", "cols", "k"]
// ///
//
// Each pass finds the maximum of the keys that are smaller than the last result. Limits: the row is read k times, by
// only one block.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
typedef unsigned long long Key;

// Return a key, which is larger if its element comes first. Upper half: the value as an unsigned number of the same
// order, with one code for all NaNs and one for both zeros. Lower half: the complement of the index. No key is 0.
__device__ __forceinline__ Key key_of(float value, unsigned index) {
    const unsigned bits = __float_as_uint(value == 0.0f ? 0.0f : value);
    unsigned code = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    if (value != value) code = 0xffc00000u;
    return (Key)code << 32 | (unsigned)~index;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    top_k_passes(const T* __restrict__ x, T* __restrict__ values, int* __restrict__ indices, int cols, int k) {
    // x [rows][cols]; values, indices [rows][k]
    __shared__ Key largest[BLOCK];
    const T* row = x + (size_t)blockIdx.x * cols;
    Key last = ~0ull;
    for (int rank = 0; rank < k; ++rank) {
        Key thread_best = 0;
        for (int i = threadIdx.x; i < cols; i += BLOCK) {
            const Key key = key_of((float)row[i], i);
            if (key < last && key > thread_best) thread_best = key;
        }
        largest[threadIdx.x] = thread_best;
        __syncthreads();
        for (int distance = BLOCK / 2; distance > 0; distance /= 2) {
            if (threadIdx.x < distance && largest[threadIdx.x + distance] > largest[threadIdx.x])
                largest[threadIdx.x] = largest[threadIdx.x + distance];
            __syncthreads();
        }
        last = largest[0];
        if (threadIdx.x == 0) {
            const int index = (int)~(unsigned)last;
            values[(size_t)blockIdx.x * k + rank] = row[index];
            indices[(size_t)blockIdx.x * k + rank] = index;
        }
        __syncthreads();  // all threads have read the result before the next pass overwrites it
    }
}
