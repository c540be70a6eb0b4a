// /// opbench
// title     = "16-byte accesses, one grid dimension for the rows: no division by the row length"
// builds_on = "flat_divmod"
// mechanism = ["coalesced", "vectorised_access", "unrolled", "no_division"]
// tune      = { BLOCK = [256, 64, 128], UNROLL = [2, 1, 4] }
// requires  = ["cdiv(features // lanes, BLOCK * UNROLL) <= 65535"]
// supports  = { dtype = ["f32", "bf16", "i32"], batches = ["several", "one"] }
//
// [define]
// BYTES   = "(2 if dtype == 'bf16' else 4) * lanes"
// PACK    = "'unsigned short' if BYTES == 2 else 'unsigned' if BYTES == 4 else 'uint2' if BYTES == 8 else 'uint4'"
// VECTORS = "features // lanes"
// SEVERAL = "batches == 'several'"
//
// [[launch]]
// kernel = "gather_vectorised"
// grid   = ["rows", "cdiv(VECTORS, BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// args   = ["data", "order", "step?", "batch", "rows", "total"]
// ///
//
// A block copies part of one row and looks up the row's index once; a thread has UNROLL vectors in flight. Limits: the
// load of the index must arrive before all others start; if rows are no multiple of a block, some threads have nothing
// to copy. For rows of one element, such as labels, the previous variant is better.
typedef PACK Pack;  // what one load or store moves

extern "C" __global__ void __launch_bounds__(BLOCK)
    gather_vectorised(const Pack* __restrict__ data, const int* __restrict__ order,
#if SEVERAL
                      const int* __restrict__ step,
#endif
                      Pack* __restrict__ batch, int rows, int total) {
    // data [items][VECTORS]; order [total]; step [1], counts from 1; batch [rows][VECTORS]
    const unsigned row = blockIdx.x, first = blockIdx.y * (BLOCK * UNROLL) + threadIdx.x;
#if SEVERAL
    const int place = (int)(((long long)(*step - 1) * rows + row) % total);
#else
    const int place = row;
#endif
    const Pack* source = data + (size_t)order[place] * VECTORS;
    Pack* target = batch + (size_t)row * VECTORS;
    Pack pack[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * BLOCK < VECTORS) pack[u] = source[first + u * BLOCK];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * BLOCK < VECTORS) target[first + u * BLOCK] = pack[u];
    }
}
