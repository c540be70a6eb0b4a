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
// define    = { LATE = "0" }
//
// [variant.onesweep_late_look_back]
// title     = "onesweep; keys are ordered in shared memory before the look-back, while earlier tiles publish sums"
// builds_on = "onesweep"
// tune      = { BLOCK = [512, 384], ITEMS = [16, 20, 12], RESIDENT = [2, 3] }
// where     = ["(BLOCK, ITEMS, RESIDENT) in ((512, 16, 2), (512, 12, 2), (384, 20, 2), (384, 16, 3))"]
// define    = { LATE = "1", AHEAD = "8" }
// ///
//
// How often a digit occurs does not depend on the order of the keys, so one kernel counts for all passes (Adinets and
// Merrill, Onesweep, arXiv 2206.01784). A block has one tile. For each digit it publishes how many keys the tile has,
// and adds up the numbers of the tiles before, AHEAD loads at a time from the nearest tile on, until it meets a sum
// over all tiles up to there. State and number are one word, whose upper four bits are 2 * pass + 1 for a tile's own
// number and 2 * pass + 2 for a sum, so that one array serves all passes. A block takes its tile when it starts: the
// blocks that it waits for are running. Limit: HBM, 36 bytes per key, and the votes that rank the keys of a warp.
//
// In `onesweep_late_look_back` a block publishes its numbers, puts its keys in order in shared memory, and looks back
// only then: the tiles before have had time to publish their sums, so that it waits less and meets a sum sooner. The
// compiler may use as many registers as RESIDENT blocks per multiprocessor leave.

#include <opbench/radix_digits.cuh>
using namespace opbench;

constexpr int DIGITS = 256, WARPS = BLOCK / 32;
constexpr int COUNTING = 512, COPIES = 8;  // threads, and copies of each counter, of the kernel that counts
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

// Set `ranks` to the number of keys with the same digit before each key in the warp's part of the tile; `counts` is the
// warp's own. Several additions are on their way before the first result is needed.
__device__ __forceinline__ void rank_in_warp(const unsigned (&keys)[ITEMS], int (&ranks)[ITEMS], int* counts,
                                             int shift) {
    constexpr int GROUP = 4;
    const unsigned below = (1u << threadIdx.x % 32) - 1;
#pragma unroll
    for (int first = 0; first < ITEMS; first += GROUP) {
        unsigned lanes[GROUP];
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
            const unsigned digit = keys[first + k] >> shift & 255;
            lanes[k] = lanes_with(digit);
            ranks[first + k] = 0;
            if ((lanes[k] & below) == 0) ranks[first + k] = atomicAdd(counts + digit, __popc(lanes[k]));
        }
#pragma unroll
        for (int k = 0; k < GROUP; ++k)
            ranks[first + k] =
                __shfl_sync(0xffffffffu, ranks[first + k], __ffs(lanes[k]) - 1) + __popc(lanes[k] & below);
    }
}

extern "C" __global__ void __launch_bounds__(COUNTING)
    sort_count_all(const Bits* __restrict__ x, unsigned* sums, int n) {
    // x [n], aligned to 16 bytes; sums: see above, zero at the start
    __shared__ unsigned own[4 * DIGITS * COPIES];  // copies of a counter lie in neighbouring banks
    for (int i = threadIdx.x; i < 4 * DIGITS * COPIES; i += COUNTING) own[i] = 0;
    __syncthreads();
    const auto count = [&](Bits bits) {
        const unsigned code = code_of<INTEGERS>(bits);
#pragma unroll
        for (int pass = 0; pass < 4; ++pass)
            atomicAdd(own + (pass * DIGITS + (code >> 8 * pass & 255)) * COPIES + threadIdx.x % COPIES, 1u);
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
        for (int copy = 0; copy < COPIES; ++copy) sum += own[i * COPIES + (copy + threadIdx.x) % COPIES];
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
    unsigned keys[ITEMS];
    int ranks[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const unsigned i = base + (warp * ITEMS + k) * 32 + lane;
        keys[k] = 0xffffffffu;  // after all keys with this digit
        if (i < n) keys[k] = pass == 0 ? code_of<INTEGERS>(__ldcs(source + i)) : __ldcs(source + i);
    }
    rank_in_warp(keys, ranks, counts + warp * DIGITS, shift);
    __syncthreads();
    const bool has_digit = threadIdx.x < DIGITS;
    int total = 0, before = 0, everywhere = 0;
    unsigned* word = words_of(sums, tile) + threadIdx.x;
    const unsigned own = 2 * pass + 1, sum = 2 * pass + 2;
    const auto add_tiles_before = [&] {
        before = look_back(words_of(sums, 0) + threadIdx.x, tile, pass);
        if (tile != 0) atomicExch(word, sum << 28 | (unsigned)(before + total));
    };
    if (has_digit) {
#pragma unroll
        for (int w = 0; w < WARPS; ++w) total += counts[w * DIGITS + threadIdx.x];
        atomicExch(word, (tile == 0 ? sum : own) << 28 | (unsigned)total);
        everywhere = counts_of(sums, pass)[threadIdx.x];
        if (!LATE) add_tiles_before();  // at once: tiles that come later walk over this one until its sum is there
    }
    const int first = sum_before<DIGITS>(total, warp_sums);
    if (has_digit) {
        int place = first;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const int own = counts[w * DIGITS + threadIdx.x];
            counts[w * DIGITS + threadIdx.x] = place;
            place += own;
        }
    }
    const int start = sum_before<DIGITS>(everywhere, warp_sums);
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) tile_keys[counts[warp * DIGITS + (keys[k] >> shift & 255)] + ranks[k]] = keys[k];
    if (LATE && has_digit) add_tiles_before();
    if (has_digit) shifts[threadIdx.x] = start + before - first;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int i = k * BLOCK + threadIdx.x;
        if (base + i >= n) break;
        const unsigned key = tile_keys[i];
        target[shifts[key >> shift & 255] + i] = pass == 3 ? bits_of<INTEGERS>(key) : key;
    }
}
