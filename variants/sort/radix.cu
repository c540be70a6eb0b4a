// /// opbench
// mechanism = ["fewer_passes", "fewer_operations", "warp_shuffle", "unrolled", "persistent"]
// tune      = { ITEMS = [16, 8], BLOCKS_PER_SM = [4, 8] }
// where     = ["ITEMS == 16 or BLOCKS_PER_SM == 8"]
// requires  = ["n <= 1073741824"]
// supports  = { dtype = ["f32", "i32"] }
// workspace = { keys = "n", counts = "256 * min(TILES, BLOCKS_PER_SM * sm_count)" }
//
// [define]
// INTEGERS = "dtype == 'i32'"
// TILE     = "256 * ITEMS"
// TILES    = "cdiv(n, TILE)"
//
// [[launch]]
// kernel = "sort_count"
// grid   = ["min(TILES, BLOCKS_PER_SM * sm_count)"]
// block  = ["256"]
// args   = ["x", "counts", "n", "0"]
//
// [[launch]]
// kernel = "sort_scan"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["counts", "256 * min(TILES, BLOCKS_PER_SM * sm_count)"]
//
// [[launch]]
// kernel = "sort_move"
// grid   = ["min(TILES, BLOCKS_PER_SM * sm_count)"]
// block  = ["256"]
// args   = ["x", "keys", "counts", "n", "0"]
//
// [[launch]]
// kernel = "sort_count"
// grid   = ["min(TILES, BLOCKS_PER_SM * sm_count)"]
// block  = ["256"]
// args   = ["keys", "counts", "n", "1"]
//
// [[launch]]
// kernel = "sort_scan"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["counts", "256 * min(TILES, BLOCKS_PER_SM * sm_count)"]
//
// [[launch]]
// kernel = "sort_move"
// grid   = ["min(TILES, BLOCKS_PER_SM * sm_count)"]
// block  = ["256"]
// args   = ["keys", "out", "counts", "n", "1"]
//
// [[launch]]
// kernel = "sort_count"
// grid   = ["min(TILES, BLOCKS_PER_SM * sm_count)"]
// block  = ["256"]
// args   = ["out", "counts", "n", "2"]
//
// [[launch]]
// kernel = "sort_scan"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["counts", "256 * min(TILES, BLOCKS_PER_SM * sm_count)"]
//
// [[launch]]
// kernel = "sort_move"
// grid   = ["min(TILES, BLOCKS_PER_SM * sm_count)"]
// block  = ["256"]
// args   = ["out", "keys", "counts", "n", "2"]
//
// [[launch]]
// kernel = "sort_count"
// grid   = ["min(TILES, BLOCKS_PER_SM * sm_count)"]
// block  = ["256"]
// args   = ["keys", "counts", "n", "3"]
//
// [[launch]]
// kernel = "sort_scan"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["counts", "256 * min(TILES, BLOCKS_PER_SM * sm_count)"]
//
// [[launch]]
// kernel = "sort_move"
// grid   = ["min(TILES, BLOCKS_PER_SM * sm_count)"]
// block  = ["256"]
// args   = ["keys", "out", "counts", "n", "3"]
//
// [variant.radix]
// title     = "radix sort, 8 bits per pass: histogram, scan, scatter; one block per part of the keys"
// builds_on = "bitonic_shared"
// define    = { REORDER = "0" }
//
// [variant.radix_reordered]
// title     = "radix sort; the keys of a tile are ordered in shared memory first, so that stores are coalesced"
// builds_on = "radix"
// mechanism = ["coalesced_stores", "shared_memory_tile"]
// define    = { REORDER = "1" }
// ///
//
// Four passes, from the lowest digit to the highest; each pass keeps the order of keys with equal digits. A pass reads
// the keys twice and writes them once. Eight warp votes show each lane which lanes of its warp have the same digit. In
// `radix`, the lanes of a warp write to as many places as they have different digits, one sector of 32 bytes per key.
// `radix_reordered` stores the keys of a digit together. Limit: HBM, 12 bytes per key and pass.

#include <opbench/radix_digits.cuh>
using namespace opbench;

constexpr int BLOCK = 256, DIGITS = 256, WARPS = BLOCK / 32;
typedef unsigned Bits;  // the bits of an element of any type

// Return the number of keys with this digit before this lane's key in the warp, and count the key in `counts`, which
// belongs to this warp.
__device__ __forceinline__ int rank_in_warp(int* counts, unsigned digit) {
    const unsigned lanes = lanes_with(digit, 0), lower = lanes & ((1u << threadIdx.x % 32) - 1);
    int before = 0;
    if (lower == 0) {  // the first lane of each digit counts for all lanes with it
        before = counts[digit];
        counts[digit] = before + __popc(lanes);
    }
    __syncwarp();
    return __shfl_sync(0xffffffffu, before, __ffs(lanes) - 1) + __popc(lower);
}

__device__ __forceinline__ unsigned load_code(const Bits* source, unsigned i, int pass) {
    return pass == 0 ? to_ordered_bits<INTEGERS>(source[i]) : source[i];
}

// The keys of a block: whole tiles.
struct Part {
    unsigned first, end;
    __device__ __forceinline__ Part(unsigned n) {
        const unsigned tiles = (TILES + gridDim.x - 1) / gridDim.x;
        first = min(n, blockIdx.x * tiles * TILE), end = min(n, first + tiles * TILE);
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK)
    sort_count(const Bits* __restrict__ source, int* __restrict__ counts, int n, int pass) {
    // source [n]; counts [DIGITS][blocks]
    __shared__ int warp_counts[WARPS][DIGITS];
    const int warp = threadIdx.x / 32;
    for (int i = threadIdx.x; i < WARPS * DIGITS; i += BLOCK) warp_counts[0][i] = 0;
    __syncthreads();
    const Part part(n);
#pragma unroll 4
    for (unsigned i = part.first + threadIdx.x; i < part.end; i += BLOCK)
        atomicAdd(&warp_counts[warp][load_code(source, i, pass) >> 8 * pass & 255], 1);
    __syncthreads();
    int sum = 0;
    for (int w = 0; w < WARPS; ++w) sum += warp_counts[w][threadIdx.x];
    counts[threadIdx.x * gridDim.x + blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(1024) sort_scan(int* counts, int length) {
    // replace each of counts [length] by the sum of those before it; one block
    __shared__ int warp_sums[32];
    constexpr int each = 8;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int carry = 0;
    for (int first = 0; first < length; first += 1024 * each) {
        int thread_counts[each], sum = 0;
#pragma unroll
        for (int k = 0; k < each; ++k) {
            const int i = first + threadIdx.x * each + k;
            thread_counts[k] = i < length ? counts[i] : 0;
            sum += thread_counts[k];
        }
        int running = sum;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, running, distance);
            if (lane >= distance) running += other;
        }
        if (lane == 31) warp_sums[warp] = running;
        __syncthreads();
        int before = carry + running - sum;
        for (int w = 0; w < 32; ++w) {
            if (w < warp) before += warp_sums[w];
            carry += warp_sums[w];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < each; ++k) {
            const int i = first + threadIdx.x * each + k;
            if (i < length) counts[i] = before;
            before += thread_counts[k];
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    sort_move(const Bits* __restrict__ source, Bits* __restrict__ target, const int* __restrict__ starts, int n,
              int pass) {
    // source, target [n]; starts [DIGITS][blocks]: where the block's first key of a digit goes
    __shared__ int counts[WARPS][DIGITS];  // later the index of each warp's first key of a digit
    __shared__ int warp_sums[WARPS];
#if REORDER
    __shared__ unsigned tile_keys[TILE];
    __shared__ int shifts[DIGITS];  // from an index in the tile to the index in the target
#endif
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int start = starts[threadIdx.x * gridDim.x + blockIdx.x];  // for the digit with this thread's number
    const Part part(n);
    for (unsigned tile = part.first; tile < part.end; tile += TILE) {
        for (int i = threadIdx.x; i < WARPS * DIGITS; i += BLOCK) counts[0][i] = 0;
        unsigned keys[ITEMS];
        int ranks[ITEMS];
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            const unsigned i = tile + (warp * ITEMS + k) * 32 + lane;
            // padding: it comes after all keys with this digit
            keys[k] = i < part.end ? load_code(source, i, pass) : 0xffffffffu;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) ranks[k] = rank_in_warp(counts[warp], keys[k] >> 8 * pass & 255);
        __syncthreads();
        int total = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) total += counts[w][threadIdx.x];
        const int first = REORDER ? sum_before<DIGITS>(total, warp_sums) : start;
        int place = first;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const int digit_count = counts[w][threadIdx.x];
            counts[w][threadIdx.x] = place;
            place += digit_count;
        }
#if REORDER
        shifts[threadIdx.x] = start - first;
#endif
        start += total;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            const int at = counts[warp][keys[k] >> 8 * pass & 255] + ranks[k];
#if REORDER
            tile_keys[at] = keys[k];
#else
            if (tile + (warp * ITEMS + k) * 32 + lane < part.end)
                target[at] = pass == 3 ? from_ordered_bits<INTEGERS>(keys[k]) : keys[k];
#endif
        }
        __syncthreads();
#if REORDER
        for (int i = threadIdx.x; i < TILE && tile + i < part.end; i += BLOCK) {
            const unsigned key = tile_keys[i];
            target[shifts[key >> 8 * pass & 255] + i] = pass == 3 ? from_ordered_bits<INTEGERS>(key) : key;
        }
        __syncthreads();  // all keys are stored before the next tile overwrites them
#endif
    }
}
