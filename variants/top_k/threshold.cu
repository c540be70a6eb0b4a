// /// opbench
// title     = "one block per row: only elements larger than the current k-th largest are collected and sorted"
// builds_on = "sorted_tiles"
// mechanism = ["coalesced", "fewer_passes", "shared_memory_tile", "fewer_operations", "fewer_barriers", "unrolled"]
// tune      = { BLOCK = [512, 1024], ITEMS = [8, 4], SORT = [1024] }
// where     = ["SORT <= 4 * BLOCK"]
// requires  = ["2 * k <= SORT"]
// supports  = { dtype = ["f32", "bf16"] }
// define    = { BF16 = "dtype == 'bf16'", K = "k" }
//
// [[launch]]
// kernel = "top_k_threshold"
// grid   = ["rows"]
// block  = ["BLOCK"]
// args   = ["x", "values", "indices", "cols"]
// ///
//
// After n elements in random order, the next one is among the k largest with a probability of k / n. Such candidates
// are collected in a buffer in shared memory. When the buffer is half full, it is sorted together with the k largest. A
// candidate for which the buffer has no room stays in a register of its thread until after the sort. Limit: one block
// per row, so few rows leave most of the GPU idle. Rows in ascending order are the slowest, because all elements are
// candidates.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
typedef unsigned long long Key;

constexpr int PLACES = SORT - K;  // room for candidates

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
    top_k_threshold(const T* __restrict__ x, T* __restrict__ values, int* __restrict__ indices, int cols) {
    // x [rows][cols]; values, indices [rows][K]
    __shared__ Key keys[SORT];  // the K largest in order, then candidates
    __shared__ int count;
    const T* row = x + (size_t)blockIdx.x * cols;
    for (int i = threadIdx.x; i < SORT; i += BLOCK) keys[i] = 0;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    Key threshold = 0;
    for (int first = 0; first < cols; first += BLOCK * ITEMS) {
        Key thread_keys[ITEMS];
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int i = first + item * BLOCK + threadIdx.x;
            thread_keys[item] = i < cols ? key_of((float)row[i], i) : 0;
        }
        for (int candidates = PLACES + 1; candidates > PLACES;) {
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                if (thread_keys[item] > threshold) {
                    const int place = atomicAdd(&count, 1);
                    if (place >= PLACES) continue;
                    keys[K + place] = thread_keys[item];
                }
                thread_keys[item] = 0;
            }
            __syncthreads();
            candidates = count;
            __syncthreads();
            if (2 * candidates <= PLACES && first + BLOCK * ITEMS < cols) continue;
            for (int i = K + candidates + threadIdx.x; i < SORT; i += BLOCK) keys[i] = 0;
            if (threadIdx.x == 0) count = 0;
            __syncthreads();
            sort_keys(keys);
            threshold = keys[K - 1];
        }
    }
    for (int rank = threadIdx.x; rank < K; rank += BLOCK) {
        const int index = (int)~(unsigned)keys[rank];
        values[(size_t)blockIdx.x * K + rank] = row[index];
        indices[(size_t)blockIdx.x * K + rank] = index;
    }
}
