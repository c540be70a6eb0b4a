// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "unrolled",
//     "compile_time_sizes",
// ]
// requires  = ["inner == 1"]
//
// [supports]
// op    = ["sum", "mean", "max", "min", "prod", "l1", "l2", "argmax", "argmin"]
// dtype = ["f32", "bf16"]
//
// [define]
// BF16      = "dtype == 'bf16'"
// HAS_INDEX = "has_index"
// OP        = "op"
// AXIS      = "axis"
// LANES     = "lanes"
// VECTORS   = "axis // lanes"
// JOINING   = "256"
//
// [variant.rows_vectorised]
// title     = "16-byte loads, ITEMS in flight per thread, with as many threads as a row needs"
// builds_on = "warp_per_row"
// tune      = { ITEMS = [4, 2, 8, 1], STREAM = [0, 1] }
//
// [variant.rows_vectorised.define]
// SHARE          = "cdiv(VECTORS, ITEMS)"
// SHORT          = "1 if SHARE <= 1 else 2 if SHARE <= 2 else 4 if SHARE <= 4 else 8 if SHARE <= 8 else 16"
// THREADS        = "SHORT if SHARE <= 16 else min(512, 32 * cdiv(SHARE, 32))"
// ROWS_PER_BLOCK = "max(1, 128 // THREADS)"
// PARTS          = "1"
// OVERLAP        = "0"
//
// [[variant.rows_vectorised.launch]]
// kernel = "reduce_rows"
// grid   = ["cdiv(outer, ROWS_PER_BLOCK)"]
// block  = ["THREADS", "ROWS_PER_BLOCK"]
// args   = ["x", "out", "outer"]
//
// [variant.rows_split]
// title     = "PARTS blocks split a long row; a second kernel combines their results"
// builds_on = "rows_vectorised"
// mechanism = ["split_k", "grid_stride"]
// tune      = { THREADS = [256, 512], ITEMS = [4, 8, 2], BLOCKS = [1056, 528, 264], STREAM = [1] }
// where     = ["THREADS * BLOCKS <= 270336"]
// requires  = ["VECTORS >= 1024", "2 * outer <= BLOCKS"]
// workspace = { partial = "(2 if has_index else 1) * outer * PARTS" }
//
// [variant.rows_split.define]
// ROWS_PER_BLOCK = "1"
// PARTS          = "min(max(2, cdiv(VECTORS, THREADS * ITEMS)), BLOCKS // outer)"
// OVERLAP        = "0"
//
// [[variant.rows_split.launch]]
// kernel = "reduce_rows"
// grid   = ["PARTS", "outer"]
// block  = ["THREADS"]
// args   = ["x", "partial", "outer"]
//
// [[variant.rows_split.launch]]
// kernel = "reduce_join"
// grid   = ["outer"]
// block  = ["JOINING"]
// args   = ["partial", "out"]
//
// [variant.rows_split_overlapped]
// title     = "programmatic dependent launch: the second kernel starts early and waits on the GPU"
// builds_on = "rows_split"
// mechanism = ["split_k", "grid_stride", "overlapped_launch"]
// tune      = { THREADS = [256, 512], ITEMS = [4, 8, 2], BLOCKS = [1056, 528], STREAM = [1] }
// where     = ["THREADS * BLOCKS == 270336"]
// requires  = ["VECTORS >= 1024", "2 * outer <= BLOCKS"]
// workspace = { partial = "(2 if has_index else 1) * outer * PARTS" }
// compute_capability = "9.0"
//
// [variant.rows_split_overlapped.define]
// ROWS_PER_BLOCK = "1"
// PARTS          = "min(max(2, cdiv(VECTORS, THREADS * ITEMS)), BLOCKS // outer)"
// OVERLAP        = "1"
//
// [[variant.rows_split_overlapped.launch]]
// kernel = "reduce_rows"
// grid   = ["PARTS", "outer"]
// block  = ["THREADS"]
// args   = ["x", "partial", "outer"]
//
// [[variant.rows_split_overlapped.launch]]
// kernel = "reduce_join"
// grid   = ["outer"]
// block  = ["JOINING"]
// args   = ["partial", "out"]
// programmatic = true
// ///
//
// A thread issues its loads of a row, up to ITEMS vectors, before it uses the first element. Several short rows share a
// block and a warp; the warps of a long row exchange their results through shared memory once. Each lane of a vector
// has its own partial result, so few instructions wait for the previous one. If the row length is not a multiple of a
// vector, loads are narrower. If there are few rows, rows_split uses PARTS blocks per row. PARTS does not depend on the
// GPU, and the partial results are joined in a fixed order, so the bits are the same every time. Limit: HBM, reading
// only.

#include <opbench/reduction.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Packed<T, LANES> Pack;
typedef Partial<Reduction::OP> Part;
#if HAS_INDEX
typedef int Out;
#else
typedef T Out;
#endif
constexpr int WARPS = (THREADS + 31) / 32;  // warps that share a row
constexpr unsigned STEP = THREADS * PARTS;  // vectors from one of a thread to its next
constexpr bool even = VECTORS % (ITEMS * STEP) == 0;

#if PARTS > 1
typedef Part Target;
#else
typedef Out Target;
#endif

extern "C" __global__ void __launch_bounds__(THREADS* ROWS_PER_BLOCK)
    reduce_rows(const T* __restrict__ x, Target* __restrict__ target, unsigned outer) {
    // x [outer][AXIS]; target [outer], or partial results [outer][PARTS]
    __shared__ Part shared[ROWS_PER_BLOCK][WARPS];
#if OVERLAP
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
#if PARTS > 1
    const unsigned row = blockIdx.y, block = blockIdx.x;
#else
    const unsigned row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y, block = 0;
#endif
    const Pack* source = reinterpret_cast<const Pack*>(x) + (size_t)row * VECTORS;
    Part part[LANES];
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) part[lane] = Part::empty();
    if (row < outer) {  // threads after the last row only take part in shuffles
        const unsigned own = block * THREADS + threadIdx.x;
        for (unsigned first = own; first - own < VECTORS; first += ITEMS * STEP) {
            Pack pack[ITEMS];
#pragma unroll
            for (int k = 0; k < ITEMS; ++k) {
                if (even || first + k * STEP < VECTORS) pack[k] = load_packed<STREAM>(source + first + k * STEP);
            }
#pragma unroll
            for (int k = 0; k < ITEMS; ++k) {
                if (!even && first + k * STEP >= VECTORS) break;
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane) {
                    part[lane].add(lane_of<T>(pack[k], lane), (first + k * STEP) * LANES + lane);
                }
            }
        }
    }
#pragma unroll
    for (int lane = 1; lane < LANES; ++lane) part[0].join(part[lane]);
    join_row<THREADS>(part[0], shared);
    if (threadIdx.x != 0 || row >= outer) return;
#if PARTS > 1
    target[(size_t)row * PARTS + block] = part[0];
#else
    target[row] = part[0].result<Out>(AXIS);
#endif
}

#if PARTS > 1
extern "C" __global__ void __launch_bounds__(JOINING) reduce_join(const Part* partial, Out* __restrict__ out) {
    // partial: PARTS results per row; out: one result per row; each row has one block
    __shared__ Part shared[1][JOINING / 32];
#if OVERLAP
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    Part part = Part::empty();
    for (int k = threadIdx.x; k < PARTS; k += JOINING) part.join(partial[(size_t)blockIdx.x * PARTS + k]);
    join_row<JOINING>(part, shared);
    if (threadIdx.x == 0) out[blockIdx.x] = part.result<Out>(AXIS);
}
#endif
