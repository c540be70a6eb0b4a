// /// opbench
// title     = "flat index over vectors; UNROLL indices, then UNROLL vectors in flight; compile-time sizes"
// builds_on = "vectorised"
// mechanism = ["coalesced", "vectorised_access", "unrolled", "flat_index", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512], UNROLL = [4, 2, 8], STREAM = [0, 1] }
// requires  = ["rows * VECTORS <= 4294901760"]
// supports  = { dtype = ["f32", "bf16", "i32"], batches = ["several", "one"] }
//
// [define]
// BYTES   = "(2 if dtype == 'bf16' else 4) * lanes"
// PACK    = "'unsigned short' if BYTES == 2 else 'unsigned' if BYTES == 4 else 'uint2' if BYTES == 8 else 'uint4'"
// VECTORS = "features // lanes"
// ROWS    = "rows"
// TOTAL   = "total"
// SEVERAL = "batches == 'several'"
//
// [[launch]]
// kernel = "gather_flat_vectors"
// grid   = ["cdiv(rows * VECTORS, BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// args   = ["data", "order", "step?", "batch"]
// ///
//
// No thread is idle, whatever the width of a row is: the vectors of all rows are numbered consecutively. Divisions by
// constant sizes become multiplications. A thread first loads the indices of all its vectors, then the vectors, so it
// waits for memory twice in total, not twice per vector. STREAM marks the stores evict-first, so that rows which
// several indices name stay in L2. Limit: HBM.
typedef PACK Pack;  // the vector of one load or store
constexpr unsigned COUNT = (unsigned)ROWS * VECTORS;
constexpr bool even = COUNT % (BLOCK * UNROLL) == 0;

extern "C" __global__ void __launch_bounds__(BLOCK)
    gather_flat_vectors(const Pack* __restrict__ data, const int* __restrict__ order,
#if SEVERAL
                        const int* __restrict__ step,
#endif
                        Pack* __restrict__ batch) {
    // data [items][VECTORS]; order [TOTAL]; step [1], counts from 1; batch [ROWS][VECTORS]
    const unsigned first = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x;
#if SEVERAL
    const long long start = (long long)(*step - 1) * ROWS;
#endif
    int item[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (!even && i >= COUNT) break;
#if SEVERAL
        item[u] = order[(start + i / VECTORS) % TOTAL];
#else
        item[u] = order[i / VECTORS];
#endif
    }
    Pack pack[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (!even && i >= COUNT) break;
        pack[u] = data[(size_t)item[u] * VECTORS + i % VECTORS];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (!even && i >= COUNT) break;
        if (STREAM)
            __stcs(batch + i, pack[u]);
        else
            batch[i] = pack[u];
    }
}
