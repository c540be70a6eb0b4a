// /// opbench
// title     = "PARTS blocks per row with 16-byte loads; a second kernel selects among the k largest of each part"
// builds_on = "threshold"
// mechanism = [
//     "coalesced", "fewer_passes", "shared_memory_tile", "fewer_operations", "fewer_barriers", "unrolled",
//     "vectorised_access", "split_k", "compile_time_sizes",
// ]
// tune      = { BLOCK = [256, 512], SORT = [512, 256, 1024], PARTS = [8, 16, 1, 4] }
// where     = [
//     "BLOCK == 512 or (SORT, PARTS) in ((512, 8), (512, 16), (512, 1), (256, 8), (256, 1), (1024, 8))",
//     "BLOCK == 256 or (SORT, PARTS) == (512, 4)",
// ]
// requires  = ["2 * k <= SORT", "rows <= 65535"]
// supports  = { dtype = ["f32", "bf16"] }
// define    = { BF16 = "dtype == 'bf16'", K = "k", LANES = "lanes", VECTORS = "cols // lanes" }
// workspace = { best = "2 * rows * PARTS * k" }
//
// [[launch]]
// kernel = "top_k_of_parts"
// grid   = ["PARTS", "rows"]
// block  = ["BLOCK"]
// args   = ["x", "best"]
//
// [[launch]]
// kernel = "top_k_of_best"
// grid   = ["rows"]
// block  = ["BLOCK"]
// args   = ["x", "best", "values", "indices"]
// ///
//
// All multiprocessors read, even if there are few rows. Most elements cost only a comparison of floats with the k-th
// best of the part. Only larger elements are converted to keys, and a warp without larger elements goes to the barrier
// at once. Each chunk has one barrier, which also passes on whether the candidates must be sorted. Loads ahead of the
// comparisons would need the registers of the fourth block on a multiprocessor, and gain nothing. Limit: HBM, reading
// only, at half of its rate, as the blocks wait for their loads; for short parts the sorts.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Vector<T, LANES> Lanes;
typedef Packed<T, LANES> Pack;
typedef unsigned long long Key;
constexpr int PLACES = SORT - K;                   // for candidates
constexpr int ITEMS = LANES > 4 ? 32 / LANES : 8;  // loads in flight
constexpr int CHUNK = (VECTORS + PARTS - 1) / PARTS;
// Sort the first elements of a part before the others are read: in short parts this saves candidates; in parts of
// 131072 elements it takes longer than it saves.
constexpr bool SORTED_START = CHUNK * LANES < 65536;
static_assert(ITEMS * LANES <= 32, "one bit per element of a thread");

// A key is larger if its element comes first: the value in the upper half, ordered as an unsigned number, with one code
// for all NaNs and one for both zeros; the complement of the index in the lower half. No key is 0.
__device__ __forceinline__ Key key_of(float value, unsigned index) {
    const unsigned bits = __float_as_uint(value == 0.0f ? 0.0f : value);
    unsigned code = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    if (value != value) code = 0xffc00000u;
    return (Key)code << 32 | (unsigned)~index;
}

// Return the value of a key's element; NaN, of no known sign, for that of NaN.
__device__ __forceinline__ float value_of(Key key) {
    const unsigned code = (unsigned)(key >> 32);
    return __uint_as_float((code >> 31) != 0 ? code & 0x7fffffffu : ~code);
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

// The K best keys so far, in order, and candidates in shared memory.
struct TopKeys {
    Key* keys;
    int* count;
    Key threshold = 0;

    __device__ __forceinline__ TopKeys(Key* keys_, int* count_) : keys(keys_), count(count_) {
        for (int i = threadIdx.x; i < SORT; i += BLOCK) keys[i] = 0;
        if (threadIdx.x == 0) *count = 0;
        __syncthreads();
    }
    // Start from the first SORT keys, sorted, so that few later keys become candidates. `key(i)` is 0 if there is no
    // key i.
    template <class KeyOf>
    __device__ __forceinline__ TopKeys(Key* keys_, int* count_, const KeyOf& key) : keys(keys_), count(count_) {
        for (int i = threadIdx.x; i < SORT; i += BLOCK) keys[i] = key(i);
        if (threadIdx.x == 0) *count = 0;
        __syncthreads();
        sort_keys(keys);
        threshold = keys[K - 1];
    }

    // Insert the elements of all threads that are among the K best. Bit i of `pending` is set if this thread's element
    // i still has to be compared; `key(i)` is its key, or 0 if the element does not exist. An element above the
    // threshold becomes a candidate. The block sorts after the last elements, and when half of the places for
    // candidates are taken: the thread that takes such a place votes for it, and the barrier passes the vote to all
    // threads. Repeat while candidates find no place.
    template <int items, class KeyOf>
    __device__ __forceinline__ void add(unsigned pending, const KeyOf& key, bool last) {
        for (int candidates = PLACES + 1; candidates > PLACES;) {
            bool full = last;
            if (pending != 0) {
#pragma unroll
                for (int item = 0; item < items; ++item) {
                    if ((pending >> item & 1) == 0) continue;
                    const Key candidate = key(item);
                    if (candidate > threshold) {
                        const int place = atomicAdd(count, 1);
                        full |= 2 * place >= PLACES;
                        if (place >= PLACES) continue;
                        keys[K + place] = candidate;
                    }
                    pending &= ~(1u << item);
                }
            }
            if (!__syncthreads_or(full)) return;
            candidates = *count;
            for (int i = K + candidates + threadIdx.x; i < SORT; i += BLOCK) keys[i] = 0;
            __syncthreads();
            if (threadIdx.x == 0) *count = 0;
            sort_keys(keys);
            threshold = keys[K - 1];
        }
    }
};

template <class KeyOf>
__device__ __forceinline__ TopKeys begin(Key* keys, int* count, const KeyOf& key) {
    if constexpr (SORTED_START)
        return TopKeys(keys, count, key);
    else
        return TopKeys(keys, count);
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1024 / BLOCK)
    top_k_of_parts(const T* __restrict__ x, Key* __restrict__ best) {
    // x [rows][VECTORS * LANES]; best [rows][PARTS][K], 0 where a part has fewer elements
    __shared__ Key keys[SORT];
    __shared__ int count;
    const T* elements = x + (size_t)blockIdx.y * VECTORS * LANES;
    const Pack* row = reinterpret_cast<const Pack*>(elements);
    const int start = min(blockIdx.x * CHUNK, VECTORS), end = min(start + CHUNK, VECTORS);
    TopKeys top_keys = begin(keys, &count, [&](int i) -> Key {
        const int index = start * LANES + i;
        return index < end * LANES ? key_of((float)elements[index], index) : 0;
    });
    for (int first = start + (SORTED_START ? SORT / LANES : 0); first < end; first += BLOCK * ITEMS) {
        Lanes loaded[ITEMS];
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            const int vector = first + k * BLOCK + threadIdx.x;
            if (vector < end) loaded[k].raw = __ldcs(row + vector);
        }
        const float limit = top_keys.threshold == 0 ? __uint_as_float(0xff800000u) : value_of(top_keys.threshold);
        unsigned pending = 0;
#pragma unroll
        for (int item = 0; item < ITEMS * LANES; ++item)
            if (first + item / LANES * BLOCK + threadIdx.x < end &&
                !((float)loaded[item / LANES].lane(item % LANES) < limit))
                pending |= 1u << item;
        top_keys.add<ITEMS * LANES>(
            pending,
            [&](int item) -> Key {
                const int vector = first + item / LANES * BLOCK + threadIdx.x;
                return key_of((float)loaded[item / LANES].lane(item % LANES), vector * LANES + item % LANES);
            },
            first + BLOCK * ITEMS >= end);
    }
    Key* target = best + ((size_t)blockIdx.y * PARTS + blockIdx.x) * K;
    for (int rank = threadIdx.x; rank < K; rank += BLOCK) target[rank] = keys[rank];
}

extern "C" __global__ void __launch_bounds__(BLOCK) top_k_of_best(const T* __restrict__ x, const Key* __restrict__ best,
                                                                  T* __restrict__ values, int* __restrict__ indices) {
    // x [rows][VECTORS * LANES]; best [rows][PARTS][K]; values, indices [rows][K]
    __shared__ Key keys[SORT];
    __shared__ int count;
    const Key* source = best + (size_t)blockIdx.x * PARTS * K;
    TopKeys top_keys(keys, &count, [&](int i) -> Key { return i < PARTS * K ? source[i] : 0; });
    for (int first = SORT; first < PARTS * K; first += BLOCK * ITEMS)
        top_keys.add<ITEMS>((1u << ITEMS) - 1,
                            [&](int item) -> Key {
                                const int i = first + item * BLOCK + threadIdx.x;
                                return i < PARTS * K ? source[i] : 0;
                            },
                            first + BLOCK * ITEMS >= PARTS * K);
    for (int rank = threadIdx.x; rank < K; rank += BLOCK) {
        const int index = (int)~(unsigned)keys[rank];
        values[(size_t)blockIdx.x * K + rank] = x[(size_t)blockIdx.x * VECTORS * LANES + index];
        indices[(size_t)blockIdx.x * K + rank] = index;
    }
}
