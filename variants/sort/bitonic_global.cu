// /// opbench
// title     = "bitonic sort in global memory: each step compares and exchanges n / 2 pairs"
// mechanism = ["grid_stride"]
// tune      = { BLOCK = [1024, 512], BLOCKS_PER_SM = [2, 4] }
// where     = ["BLOCK * BLOCKS_PER_SM == 2048"]
// requires  = ["n <= 1073741824"]
// workspace = { arrived = "1" }
// supports  = { dtype = ["f32", "i32"] }
// define    = { INTEGERS = "dtype == 'i32'" }
//
// [[launch]]
// zero = "arrived"
//
// [[launch]]
// kernel      = "sort_bitonic"
// grid        = ["min(cdiv(n, 2 * BLOCK), BLOCKS_PER_SM * sm_count)"]
// block       = ["BLOCK"]
// args        = ["x", "out", "arrived", "n"]
// cooperative = true
// ///
//
// Sorted runs are merged into runs of twice the length (Batcher, AFIPS 1968). The first step of a merge pairs the
// elements of two runs in mirrored order, so that the smaller one always goes to the lower index; elements after the
// end count as infinite and never move. All blocks are resident and wait for each other before each step. Limit: a
// vector of 2^26 elements is read and written 351 times.

// Return the element as an unsigned number with the same order; all NaNs have one code, after that of infinity.
__device__ __forceinline__ unsigned to_ordered_bits(unsigned bits) {
    if (INTEGERS) return bits ^ 0x80000000u;
    if ((bits & 0x7fffffffu) > 0x7f800000u) bits = 0x7fc00000u;
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ unsigned from_ordered_bits(unsigned code) {
    if (INTEGERS) return code ^ 0x80000000u;
    return (code >> 31) != 0 ? code & 0x7fffffffu : ~code;
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
    sort_bitonic(const unsigned* __restrict__ x, unsigned* out, unsigned* arrived, int n) {
    // x, out [n]; arrived [1], zero at the start
    const unsigned length = n, threads = gridDim.x * BLOCK, thread = blockIdx.x * BLOCK + threadIdx.x;
    unsigned pairs = 1, round = 0;
    while (2 * pairs < length) pairs *= 2;
    for (unsigned i = thread; i < length; i += threads) out[i] = x[i];
    for (unsigned run = 2; run / 2 < length; run *= 2)
        for (unsigned step = run / 2; step > 0; step /= 2) {
            wait_for_grid(arrived, ++round);
            for (unsigned pair = thread; pair < pairs; pair += threads) {
                const unsigned offset = pair & (step - 1), low = 2 * (pair - offset) + offset;
                const unsigned high = step == run / 2 ? 2 * (pair - offset) + run - 1 - offset : low + step;
                if (high >= length) continue;
                const unsigned a = out[low], b = out[high];
                if (to_ordered_bits(a) > to_ordered_bits(b)) out[low] = b, out[high] = a;
            }
        }
}
