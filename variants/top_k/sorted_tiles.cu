// /// opbench
// title     = "one block per row: bitonic sort of the k largest and a tile of new elements in shared memory"
// builds_on = "maximum_passes"
// mechanism = ["coalesced", "fewer_passes", "shared_memory_tile"]
// tune      = { BLOCK = [512, 256] }
// requires  = ["k <= BLOCK"]
// supports  = { dtype = ["f32", "bf16"] }
// define    = { BF16 = "dtype == 'bf16'", SORT = "2 * BLOCK" }
//
// [[launch]]
// kernel = "top_k_sorted_tiles"
// grid   = ["rows"]
// block  = ["BLOCK"]
// args   = ["x", "values", "indices", "cols", "k"]
// ///
//
// The row is read once. A bitonic network (Batcher, AFIPS 1968) sorts 2 * BLOCK keys; then the first half has the
// largest keys so far. Limit: log2(2 * BLOCK) * (log2(2 * BLOCK) + 1) / 2 steps, each with a barrier, for every BLOCK
// elements.
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

// Sort keys in shared memory, largest first; all threads of the block take part.
__device__ __forceinline__ void sort_keys(Key* keys) {
    for (int run = 2; run <= SORT; run *= 2)
        for (int step = run / 2; step > 0; step /= 2) {
            for (int pair = threadIdx.x; pair < SORT / 2; pair += BLOCK) {
                const int low = 2 * pair - (pair & (step - 1)), high = low + step;
                const Key a = keys[low], b = keys[high];
                if ((a < b) == ((low & run) == 0)) keys[low] = b, keys[high] = a;
            }
            __syncthreads();
        }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    top_k_sorted_tiles(const T* __restrict__ x, T* __restrict__ values, int* __restrict__ indices, int cols, int k) {
    // x [rows][cols]; values, indices [rows][k]
    __shared__ Key keys[SORT];
    const T* row = x + (size_t)blockIdx.x * cols;
    keys[threadIdx.x] = 0;
    for (int first = 0; first < cols; first += BLOCK) {
        const int i = first + threadIdx.x;
        keys[BLOCK + threadIdx.x] = i < cols ? key_of((float)row[i], i) : 0;
        __syncthreads();
        sort_keys(keys);
    }
    for (int rank = threadIdx.x; rank < k; rank += BLOCK) {
        const int index = (int)~(unsigned)keys[rank];
        values[(size_t)blockIdx.x * k + rank] = row[index];
        indices[(size_t)blockIdx.x * k + rank] = index;
    }
}
