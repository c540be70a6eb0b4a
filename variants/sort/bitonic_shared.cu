// /// opbench
// title     = "bitonic sort; the steps that stay within a tile run in shared memory"
// builds_on = "bitonic_global"
// mechanism = ["coalesced", "grid_stride", "shared_memory_tile", "fewer_passes"]
// tune      = { BLOCK = [512], BLOCKS_PER_SM = [4], TILE = [4096, 8192] }
// requires  = ["n <= 1073741824"]
// workspace = { arrived = "1" }
// supports  = { dtype = ["f32", "i32"] }
// define    = { INTEGERS = "dtype == 'i32'" }
//
// [[launch]]
// zero = "arrived"
//
// [[launch]]
// kernel      = "sort_bitonic_shared"
// grid        = ["min(cdiv(n, TILE), BLOCKS_PER_SM * sm_count)"]
// block       = ["BLOCK"]
// args        = ["x", "out", "arrived", "n"]
// cooperative = true
// ///
//
// All steps of a sort whose pairs are in the same tile run in shared memory. Merges of longer runs have steps in global
// memory until the elements of all pairs are in the same tile. With tiles of 4096, a vector of 2^26 elements is read
// and written 120 times instead of 351 times. Limit: the steps in global memory.

// Codes are unsigned numbers in the order of the elements: all NaNs have one code, after that of infinity.
__device__ __forceinline__ unsigned to_ordered_bits(unsigned bits) {
    if (INTEGERS) return bits ^ 0x80000000u;
    if ((bits & 0x7fffffffu) > 0x7f800000u) bits = 0x7fc00000u;
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ unsigned from_ordered_bits(unsigned code) {
    if (INTEGERS) return code ^ 0x80000000u;
    return (code >> 31) != 0 ? code & 0x7fffffffu : ~code;
}

// One step for `count` pairs: compare keys at the distance `step`, or mirrored in a run of twice the step.
template <class Exchange>
__device__ __forceinline__ void for_pairs(unsigned first, unsigned count, unsigned stride, unsigned step, bool mirrored,
                                          const Exchange& exchange) {
    for (unsigned pair = first; pair < count; pair += stride) {
        const unsigned offset = pair & (step - 1), base = 2 * (pair - offset);
        exchange(base + offset, mirrored ? base + 2 * step - 1 - offset : base + offset + step);
    }
}

// Do the steps from `step` down to 1 on a tile in shared memory.
__device__ __forceinline__ void merge_tile(unsigned* keys, unsigned step, bool mirrored) {
    for (; step > 0; step /= 2) {
        for_pairs(threadIdx.x, TILE / 2, BLOCK, step, mirrored, [&](unsigned low, unsigned high) {
            const unsigned a = keys[low], b = keys[high];
            if (a > b) keys[low] = b, keys[high] = a;
        });
        mirrored = false;
        __syncthreads();
    }
}

// Wait until all blocks of the grid have arrived `round` times; the launch is cooperative, so all of them are running.
__device__ __forceinline__ void wait_for_grid(unsigned* arrived, unsigned round) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1u);
        while (*static_cast<volatile unsigned*>(arrived) < round * gridDim.x) continue;
        __threadfence();
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM)
    sort_bitonic_shared(const unsigned* __restrict__ x, unsigned* out, unsigned* arrived, int n) {
    // x, out [n]; arrived [1], zero at the start
    __shared__ unsigned keys[TILE];
    const unsigned length = n;
    unsigned pairs = 1, round = 0;
    while (2 * pairs < length) pairs *= 2;
    for (unsigned run = TILE; run == TILE || run / 2 < length; run *= 2) {
        for (unsigned step = run / 2; step >= TILE; step /= 2) {
            for_pairs(blockIdx.x * BLOCK + threadIdx.x, pairs, gridDim.x * BLOCK, step, step == run / 2,
                      [&](unsigned low, unsigned high) {
                          if (high >= length) return;
                          const unsigned a = out[low], b = out[high];
                          if (to_ordered_bits(a) > to_ordered_bits(b)) out[low] = b, out[high] = a;
                      });
            wait_for_grid(arrived, ++round);
        }
        const unsigned* source = run == TILE ? x : out;
        for (unsigned tile = blockIdx.x * TILE; tile < length; tile += gridDim.x * TILE) {
            for (unsigned i = threadIdx.x; i < TILE; i += BLOCK)
                keys[i] = tile + i < length ? to_ordered_bits(source[tile + i]) : 0xffffffffu;
            __syncthreads();
            if (run == TILE)
                for (unsigned step = 1; step < TILE; step *= 2) merge_tile(keys, step, true);
            else
                merge_tile(keys, TILE / 2, false);
            for (unsigned i = threadIdx.x; i < TILE; i += BLOCK)
                if (tile + i < length) out[tile + i] = from_ordered_bits(keys[i]);
            __syncthreads();  // before the next tile overwrites the keys
        }
        wait_for_grid(arrived, ++round);
    }
}
