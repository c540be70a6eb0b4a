// /// opbench
// mechanism = [
//     "coalesced", "coalesced_stores", "fewer_passes", "fewer_operations", "warp_shuffle", "unrolled",
//     "shared_memory_tile", "split_k", "vectorised_access",
// ]
// requires  = ["n < 268435456"]
// supports  = { dtype = ["f32", "i32"] }
// workspace = { keys = "n", sums = "4 * 256 + 4 + 256 * TILES" }
//
// [define]
// INTEGERS = "dtype == 'i32'"
// TILE     = "BLOCK * ITEMS"
// TILES    = "cdiv(n, TILE)"
//
// [[launch]]
// zero = "sums"
//
// [[launch]]
// kernel = "sort_count_all"
// grid   = ["min(cdiv(n, 4 * 512), 4 * sm_count)"]
// block  = ["512"]
// args   = ["x", "sums", "n"]
//
// [[launch]]
// kernel = "sort_sweep<0>"
// grid   = ["TILES"]
// block  = ["BLOCK"]
// shared = "4 * (TILE + 8 * BLOCK)"
// args   = ["x", "keys", "sums", "n"]
//
// [[launch]]
// kernel = "sort_sweep<1>"
// grid   = ["TILES"]
// block  = ["BLOCK"]
// shared = "4 * (TILE + 8 * BLOCK)"
// args   = ["keys", "out", "sums", "n"]
//
// [[launch]]
// kernel = "sort_sweep<2>"
// grid   = ["TILES"]
// block  = ["BLOCK"]
// shared = "4 * (TILE + 8 * BLOCK)"
// args   = ["out", "keys", "sums", "n"]
//
// [[launch]]
// kernel = "sort_sweep<3>"
// grid   = ["TILES"]
// block  = ["BLOCK"]
// shared = "4 * (TILE + 8 * BLOCK)"
// args   = ["keys", "out", "sums", "n"]
// [variant.onesweep]
// title     = "onesweep: one histogram pass for all digits; each pass reads and writes once, by decoupled look-back"
// builds_on = "radix_reordered"
// tune      = { BLOCK = [512, 256], ITEMS = [12, 16], AHEAD = [16, 32, 4] }
// where     = ["BLOCK == 512 or ITEMS == 12", "AHEAD == 16 or (BLOCK == 512 and ITEMS == 12)"]
// define    = { LATE = "0", EARLY = "0" }
//
// [variant.onesweep_late_look_back]
// title     = "onesweep; keys are ordered in shared memory before the look-back, while earlier tiles publish sums"
// builds_on = "onesweep"
// tune      = { BLOCK = [512, 384], ITEMS = [16, 20, 12], RESIDENT = [2, 3] }
// where     = ["(BLOCK, ITEMS, RESIDENT) in ((512, 16, 2), (512, 12, 2), (384, 20, 2), (384, 16, 3))"]
// define    = { LATE = "1", EARLY = "0", AHEAD = "8" }
//
// [variant.onesweep_early_counts]
// title     = "onesweep; digits are counted before keys are ranked, so that a rank is the key's place in the tile"
// builds_on = "onesweep_late_look_back"
// tune      = { BLOCK = [384], ITEMS = [28, 24, 20], RESIDENT = [3] }
// define    = { LATE = "1", EARLY = "1", AHEAD = "8" }
// ///
//
// The number of keys with a digit does not depend on the order of the keys, so one kernel counts the digits of all
// passes (Adinets and Merrill, Onesweep, arXiv 2206.01784). In each pass, a block sorts one tile of keys. For each
// digit it publishes how many keys of its tile have the digit, and it needs the sum of these numbers over all previous
// tiles. So it looks back: it reads what the previous tiles have published, AHEAD loads at a time, beginning with the
// nearest tile, and adds the numbers until it reads a number that already is a sum over all tiles up to there. State
// and number are one word. Its upper four bits are 2 * pass + 1 if the number is only of this tile, and 2 * pass + 2 if
// it is a sum, so all passes use the same array. A block takes the next tile when it starts, so the blocks that it
// waits for are running. Limit: HBM, 36 bytes per key; the votes that rank the keys; waiting for other blocks.
//
// In `onesweep_late_look_back`, a block publishes its numbers, sorts its keys in shared memory, and only then looks
// back. By then the previous tiles have had time to publish their sums, so the block waits less and reads fewer words.
// The compiler may use as many registers as RESIDENT blocks per multiprocessor allow.
//
// In `onesweep_early_counts`, each warp counts its digits with atomics and publishes them before the votes. The sums
// over warps and digits are then known, so a vote yields the place of a key in the tile, and the thread stores the key
// there immediately. Ranks need no registers, so more keys fit in a block.

#include <opbench/radix_digits.cuh>
using namespace opbench;

constexpr int DIGITS = 256, WARPS = BLOCK / 32;
constexpr int COUNTING = 512, COPIES = 8;  // sort_count_all: threads per block, copies of each counter
constexpr unsigned NUMBER = 0x0fffffffu;   // the bits of a word's number
typedef unsigned Bits;                     // of an element of any type
static_assert(BLOCK >= DIGITS, "a thread for each digit");
#if LATE
#define BOUNDS __launch_bounds__(BLOCK, RESIDENT)
#else
#define BOUNDS __launch_bounds__(BLOCK)
#endif

// The workspace: counts of all digits, the next tile of each pass, and a word for each tile and digit.
__device__ __forceinline__ unsigned* counts_of(unsigned* sums, int pass) { return sums + pass * DIGITS; }
__device__ __forceinline__ unsigned* next_tile(unsigned* sums, int pass) { return sums + 4 * DIGITS + pass; }
__device__ __forceinline__ unsigned* words_of(unsigned* sums, int tile) {
    return sums + 4 * DIGITS + 4 + tile * DIGITS;
}

// Call body(k, place) for each key of this thread. Keys with the same digit get consecutive places, in the order of the
// keys in the warp's part of the tile, and the first place is counts[digit]. Each warp has its own `counts`; afterwards
// counts[digit] is the next free place.
template <int shift, class Body>
__device__ __forceinline__ void for_each_place(const unsigned (&keys)[ITEMS], int* counts, const Body& body) {
    const int lane = threadIdx.x % 32;
    const unsigned below = (1u << lane) - 1;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        volatile int* counter = counts + (keys[k] >> shift & 255);
        const unsigned lanes = lanes_with(keys[k], shift);
        const int place = *counter + __popc(lanes & below);
        __syncwarp();
        if (lanes >> lane == 1) *counter = place + 1;  // the last lane with the digit
        __syncwarp();
        body(k, place);
    }
}

extern "C" __global__ void __launch_bounds__(COUNTING)
    sort_count_all(const Bits* __restrict__ x, unsigned* sums, int n) {
    // x [n], aligned to 16 bytes; sums: see above, zero at the start
    __shared__ unsigned block_counts[4 * DIGITS * COPIES];  // copies of a counter are in neighbouring banks
    for (int i = threadIdx.x; i < 4 * DIGITS * COPIES; i += COUNTING) block_counts[i] = 0;
    __syncthreads();
    const auto count = [&](Bits bits) {
        const unsigned code = to_ordered_bits<INTEGERS>(bits);
#pragma unroll
        for (int pass = 0; pass < 4; ++pass)
            atomicAdd(block_counts + (pass * DIGITS + (code >> 8 * pass & 255)) * COPIES + threadIdx.x % COPIES, 1u);
    };
    const unsigned whole = (unsigned)n / 4, stride = gridDim.x * COUNTING;
    const unsigned thread = blockIdx.x * COUNTING + threadIdx.x;
    const uint4* packs = reinterpret_cast<const uint4*>(x);
    for (unsigned first = thread; first < whole; first += 4 * stride) {
        uint4 loaded[4];
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (first + k * stride < whole) loaded[k] = packs[first + k * stride];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if (first + k * stride >= whole) break;
            count(loaded[k].x), count(loaded[k].y), count(loaded[k].z), count(loaded[k].w);
        }
    }
    const unsigned rest = 4 * whole + thread;  // the n % 4 elements left over go to the first threads
    if (rest < n) count(x[rest]);
    __syncthreads();
    for (int i = threadIdx.x; i < 4 * DIGITS; i += COUNTING) {
        unsigned sum = 0;
#pragma unroll
        for (int copy = 0; copy < COPIES; ++copy) sum += block_counts[i * COPIES + (copy + threadIdx.x) % COPIES];
        if (sum != 0) atomicAdd(sums + i, sum);
    }
}

// Return how many keys of a digit the tiles before this one have; `words` are those of the digit's first tile.
__device__ __forceinline__ unsigned look_back(const unsigned* words, int tile, int pass) {
    unsigned sum = 0;
    for (int nearest = tile - 1; nearest >= 0; nearest -= AHEAD) {
        unsigned loaded[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; ++k)
            loaded[k] = *static_cast<const volatile unsigned*>(words + max(nearest - k, 0) * DIGITS);
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            if (k > nearest) break;
            unsigned word = loaded[k];
            while (word >> 28 <= 2 * pass)
                word = *static_cast<const volatile unsigned*>(words + (nearest - k) * DIGITS);
            sum += word & NUMBER;
            if (word >> 28 == 2 * pass + 2) return sum;
        }
    }
    return sum;
}

template <int pass>
__global__ void BOUNDS sort_sweep(const Bits* __restrict__ source, Bits* __restrict__ target, unsigned* sums, int n) {
    // source, target [n]; sums: see above
    extern __shared__ unsigned memory[];
    unsigned* tile_keys = memory;                         // [TILE]
    int* counts = reinterpret_cast<int*>(memory + TILE);  // [WARPS][DIGITS], then the place of each first key
    __shared__ int shifts[DIGITS];                        // from a place in the tile to one in the target
    __shared__ int warp_sums[DIGITS / 32];
    __shared__ int number;
    constexpr int shift = 8 * pass;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) number = atomicAdd(next_tile(sums, pass), 1u);
    for (int i = threadIdx.x; i < WARPS * DIGITS; i += BLOCK) counts[i] = 0;
    __syncthreads();
    const int tile = number;
    const unsigned base = (unsigned)tile * TILE;
    const bool whole = base + TILE <= n;
    unsigned keys[ITEMS];
    const unsigned thread_base = base + warp * ITEMS * 32 + lane;
    const auto load = [&](int k) {
        const Bits bits = __ldcs(source + thread_base + k * 32);
        return pass == 0 ? to_ordered_bits<INTEGERS>(bits) : bits;
    };
    if (whole) {
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) keys[k] = load(k);
    } else {
#pragma unroll
        for (int k = 0; k < ITEMS; ++k)
            keys[k] = thread_base + k * 32 < n ? load(k) : 0xffffffffu;  // after all keys with this digit
    }
    int* own_counts = counts + warp * DIGITS;
#if EARLY
#pragma unroll
    for (int k = 0; k < ITEMS; ++k)  // opaque: or the compiler keeps the addresses for the votes, and spills them
        atomicAdd(own_counts + (opaque(keys[k]) >> shift & 255), 1);
#else
    int ranks[ITEMS];  // the number of keys with the same digit before each key in the warp's part of the tile
    for_each_place<shift>(keys, own_counts, [&](int k, int place) { ranks[k] = place; });
#endif
    __syncthreads();
    const bool has_digit = threadIdx.x < DIGITS;
    int total = 0, start = 0;  // start: where the keys of the tiles before begin, if this is the first tile
    unsigned* word = words_of(sums, tile) + threadIdx.x;
    const unsigned tile_state = 2 * pass + 1, inclusive_state = 2 * pass + 2;
    if (has_digit) {
#pragma unroll
        for (int w = 0; w < WARPS; ++w) total += counts[w * DIGITS + threadIdx.x];
        if (tile != 0) atomicExch(word, tile_state << 28 | (unsigned)total);
    }
    if (tile == 0) {  // its sums begin with all keys of smaller digits
        start = sum_before<DIGITS>(has_digit ? counts_of(sums, pass)[threadIdx.x] : 0, warp_sums);
        if (has_digit) atomicExch(word, inclusive_state << 28 | (unsigned)(start + total));
    }
    const auto publish_inclusive_sum = [&] {
        if (tile == 0) return start;
        const int exclusive_prefix = look_back(words_of(sums, 0) + threadIdx.x, tile, pass);
        atomicExch(word, inclusive_state << 28 | (unsigned)(exclusive_prefix + total));
        return exclusive_prefix;
    };
    int exclusive_prefix = 0;
    if (!LATE && has_digit)
        exclusive_prefix = publish_inclusive_sum();  // until this, later tiles must look back past this tile
    const int first = sum_before<DIGITS>(total, warp_sums);
    if (has_digit) {
        int place = first;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const int digit_count = counts[w * DIGITS + threadIdx.x];
            counts[w * DIGITS + threadIdx.x] = place;
            place += digit_count;
        }
    }
    __syncthreads();
#if EARLY
    for_each_place<shift>(keys, own_counts, [&](int k, int place) { tile_keys[place] = keys[k]; });
#else
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) tile_keys[own_counts[keys[k] >> shift & 255] + ranks[k]] = keys[k];
#endif
    if (LATE && has_digit) exclusive_prefix = publish_inclusive_sum();
    if (has_digit) shifts[threadIdx.x] = exclusive_prefix - first;
    __syncthreads();
    const auto scatter = [&](int i) {
        const unsigned key = tile_keys[i];
        target[shifts[key >> shift & 255] + i] = pass == 3 ? from_ordered_bits<INTEGERS>(key) : key;
    };
    if (whole) {
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) scatter(k * BLOCK + threadIdx.x);
    } else {
        for (int i = threadIdx.x; base + i < n; i += BLOCK) scatter(i);
    }
}
