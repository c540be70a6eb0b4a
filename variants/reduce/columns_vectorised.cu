// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "warp_shuffle", "unrolled", "compile_time_sizes",
// ]
// requires  = ["inner > 1"]
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
// INNER     = "inner"
// LANES     = "lanes"
// VECTORS   = "inner // lanes"
// OUTPUTS   = "outer * inner"
// ROUNDED   = "8 if VECTORS <= 8 else 16 if VECTORS <= 16 else 32 if VECTORS <= 32 else 64 if VECTORS <= 64 else WIDE"
// WIDE      = "128 if VECTORS <= 128 else 256"
// NARROW    = "1 if VECTORS <= 1 else 2 if VECTORS <= 2 else 4 if VECTORS <= 4 else ROUNDED"
// SHARE     = "cdiv(axis, ITEMS)"
// FEW       = "1 if SHARE <= 1 else 2 if SHARE <= 2 else 4 if SHARE <= 4 else 8"
// WIDTH     = "min(NARROW, BLOCK // FEW)"
// ROWS      = "BLOCK // WIDTH"
// GROUPS    = "max(1, cdiv(VECTORS, WIDTH))"
//
// [variant.columns_vectorised]
// title     = "16-byte loads, ITEMS in flight per thread, and as many rows per block as the axis needs"
// builds_on = "columns_shared"
// tune      = { BLOCK = [256, 128, 512], ITEMS = [4, 8, 2], STREAM = [0, 1] }
// define    = { PARTS = "1", OVERLAP = "0" }
//
// [[variant.columns_vectorised.launch]]
// kernel = "reduce_columns"
// grid   = ["outer * GROUPS"]
// block  = ["WIDTH", "ROWS"]
// args   = ["x", "out"]
//
// [variant.columns_split]
// title     = "PARTS blocks per output split a long axis; a second kernel combines their results"
// builds_on = "columns_vectorised"
// mechanism = ["split_k", "grid_stride"]
// tune      = { BLOCK = [256, 512], ITEMS = [4, 8], BLOCKS = [1056, 528], STREAM = [1] }
// where     = ["BLOCK * BLOCKS <= 270336"]
// requires  = ["axis >= 256", "2 * outer * GROUPS <= BLOCKS"]
// define    = { PARTS = "min(max(2, cdiv(axis, ROWS * ITEMS)), BLOCKS // (outer * GROUPS))", OVERLAP = "0" }
// workspace = { partial = "(2 if has_index else 1) * OUTPUTS * PARTS" }
//
// [[variant.columns_split.launch]]
// kernel = "reduce_columns"
// grid   = ["outer * GROUPS", "PARTS"]
// block  = ["WIDTH", "ROWS"]
// args   = ["x", "partial"]
//
// [[variant.columns_split.launch]]
// kernel = "reduce_join"
// grid   = ["cdiv(OUTPUTS, 32)"]
// block  = ["32", "32"]
// args   = ["partial", "out"]
//
// [variant.columns_split_overlapped]
// title     = "programmatic dependent launch: the second kernel starts early and waits on the GPU"
// builds_on = "columns_split"
// mechanism = ["split_k", "grid_stride", "overlapped_launch"]
// tune      = { BLOCK = [256, 512], ITEMS = [4, 8], BLOCKS = [1056, 528], STREAM = [1] }
// where     = ["BLOCK * BLOCKS == 270336"]
// requires  = ["axis >= 256", "2 * outer * GROUPS <= BLOCKS"]
// define    = { PARTS = "min(max(2, cdiv(axis, ROWS * ITEMS)), BLOCKS // (outer * GROUPS))", OVERLAP = "1" }
// workspace = { partial = "(2 if has_index else 1) * OUTPUTS * PARTS" }
// compute_capability = "9.0"
//
// [[variant.columns_split_overlapped.launch]]
// kernel = "reduce_columns"
// grid   = ["outer * GROUPS", "PARTS"]
// block  = ["WIDTH", "ROWS"]
// args   = ["x", "partial"]
//
// [[variant.columns_split_overlapped.launch]]
// kernel = "reduce_join"
// grid   = ["cdiv(OUTPUTS, 32)"]
// block  = ["32", "32"]
// args   = ["partial", "out"]
// programmatic = true
// ///
//
// Each thread reduces LANES neighbouring columns and loads ITEMS rows before it uses the first. If there are few
// columns, a block is exactly as wide as they are, so that a warp reads several whole rows. For a short axis, a block
// is wider and has fewer rows. Threads of a warp that share a column combine their results by shuffles; warps combine
// theirs through shared memory, once per block. If no vector divides the number of columns, loads are narrower. In
// columns_split, PARTS blocks share each group of columns, so that more of the GPU works; the second kernel combines
// their results in a fixed order. Limit: HBM, reading only.

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
constexpr int ACROSS = WIDTH * LANES;                  // columns of a block
constexpr int LINES = WIDTH < 32 ? BLOCK / 32 : ROWS;  // partial results of a column in shared memory
constexpr int PITCH = WIDTH + 32 / LANES;              // padded: neighbouring columns lie in different banks
constexpr unsigned STEP = ROWS * PARTS;                // from one row of a thread to its next
constexpr bool even = AXIS % (ITEMS * STEP) == 0;

#if PARTS > 1
typedef Part Target;
#else
typedef Out Target;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
    reduce_columns(const T* __restrict__ x, Target* __restrict__ target) {
    // x [OUTPUTS / INNER][AXIS][INNER]; target [OUTPUTS], or partial results [PARTS][OUTPUTS]
    __shared__ Part shared[LINES][LANES][PITCH];
#if OVERLAP
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    const unsigned group = blockIdx.x % GROUPS, thread = threadIdx.y * WIDTH + threadIdx.x;
    const size_t outer = blockIdx.x / GROUPS;
    const unsigned vector = group * WIDTH + threadIdx.x;
    const Pack* source = reinterpret_cast<const Pack*>(x) + outer * AXIS * VECTORS + vector;
    Part part[LANES];
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) part[lane] = Part::empty();
    if (vector < VECTORS) {
        const unsigned own = blockIdx.y * ROWS + threadIdx.y;
        for (unsigned first = own; first - own < AXIS; first += ITEMS * STEP) {
            Pack pack[ITEMS];
#pragma unroll
            for (int k = 0; k < ITEMS; ++k) {
                const unsigned row = first + k * STEP;
                if (even || row < AXIS) pack[k] = load_packed<STREAM>(source + (size_t)row * VECTORS);
            }
#pragma unroll
            for (int k = 0; k < ITEMS; ++k) {
                const unsigned row = first + k * STEP;
                if (!even && row >= AXIS) break;
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane) part[lane].add(lane_of<T>(pack[k], lane), row);
            }
        }
    }
    const unsigned line = WIDTH < 32 ? thread / 32 : threadIdx.y;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        if (WIDTH < 32) part[lane].join_lanes(WIDTH, 16);
        if (WIDTH >= 32 || thread % 32 < WIDTH) shared[line][lane][threadIdx.x] = part[lane];
    }
    __syncthreads();
    for (unsigned column = thread; column < ACROSS; column += BLOCK) {
        const unsigned within = group * ACROSS + column;
        if (within >= INNER) break;
        Part all = shared[0][column % LANES][column / LANES];
        for (int other = 1; other < LINES; ++other) all.join(shared[other][column % LANES][column / LANES]);
        const size_t output = outer * INNER + within;
#if PARTS > 1
        target[(size_t)blockIdx.y * OUTPUTS + output] = all;
#else
        target[output] = all.result<Out>(AXIS);
#endif
    }
}

#if PARTS > 1
extern "C" __global__ void __launch_bounds__(1024) reduce_join(const Part* partial, Out* __restrict__ out) {
    // partial [PARTS][OUTPUTS]; out [OUTPUTS], of which a block has 32
    __shared__ Part shared[32][32];
#if OVERLAP
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    const unsigned output = blockIdx.x * 32 + threadIdx.x;
    Part part = Part::empty();
    if (output < OUTPUTS) {
        for (unsigned k = threadIdx.y; k < PARTS; k += 32) part.join(partial[(size_t)k * OUTPUTS + output]);
    }
    shared[threadIdx.y][threadIdx.x] = part;
    __syncthreads();
    if (threadIdx.y != 0 || output >= OUTPUTS) return;
    for (int row = 1; row < 32; ++row) part.join(shared[row][threadIdx.x]);
    out[output] = part.result<Out>(AXIS);
}
#endif
