// /// opbench
// title     = "16-byte accesses, a grid dimension for the rows: no division by a row's length"
// builds_on = "flat_divmod"
// mechanism = ["coalesced", "vectorised_access", "unrolled", "no_division"]
// tune      = { BLOCK = [256, 64, 128], UNROLL = [2, 1, 4] }
// requires  = ["cdiv(features // lanes, BLOCK * UNROLL) <= 65535"]
// supports  = { dtype = ["f32", "bf16", "i32"] }
//
// [define]
// BYTES   = "(2 if dtype == 'bf16' else 4) * lanes"
// VECTORS = "features // lanes"
//
// [[launch]]
// kernel = "gather_vectorised"
// grid   = ["rows", "cdiv(VECTORS, BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// args   = ["data", "order", "step", "batch", "rows", "total"]
// ///
//
// A block copies a piece of one row, whose position it looks up once; a thread has UNROLL vectors in flight. Limit:
// HBM; with rows shorter than a block, such as labels, most threads idle and the previous variant is better.
template <int SIZE>
struct Raw;
template <>
struct Raw<16> {
    typedef uint4 type;
};
template <>
struct Raw<8> {
    typedef uint2 type;
};
template <>
struct Raw<4> {
    typedef unsigned type;
};
template <>
struct Raw<2> {
    typedef unsigned short type;
};
typedef Raw<BYTES>::type Pack;

extern "C" __global__ void __launch_bounds__(BLOCK)
    gather_vectorised(const Pack* __restrict__ data, const int* __restrict__ order, const int* __restrict__ step,
                      Pack* __restrict__ batch, int rows, int total) {
    // data: items VECTORS; order: total; step: 1, counts from 1; batch: rows VECTORS
    const unsigned row = blockIdx.x, first = blockIdx.y * (BLOCK * UNROLL) + threadIdx.x;
    const int place = (int)(((long long)(*step - 1) * rows + row) % total);
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
