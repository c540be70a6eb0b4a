// /// opbench
// title     = "ROWS threads per column, results combined in shared memory"
// builds_on = "thread_per_output"
// mechanism = ["coalesced", "block_reduction"]
// tune      = { ROWS = [8, 4, 16] }
// define    = { BF16 = "dtype == 'bf16'", HAS_INDEX = "has_index", OP = "op" }
// requires  = ["inner > 1", "cdiv(inner, 32) <= 65535"]
//
// [supports]
// op    = ["sum", "mean", "max", "min", "prod", "l1", "l2", "argmax", "argmin"]
// dtype = ["f32", "bf16"]
//
// [[launch]]
// kernel = "reduce_columns_shared"
// grid   = ["outer", "cdiv(inner, 32)"]
// block  = ["32", "ROWS"]
// ///
//
// A warp reads 32 neighbouring elements of one row. Each warp of a block takes every ROWS-th row, so ROWS times as many
// loads are in flight as with one thread per column. Limits: 4 bytes (2 in bf16) per access, one load in flight per
// thread, and few columns leave most of the GPU idle.

#include <opbench/reduction.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Partial<Reduction::OP> Part;
#if HAS_INDEX
typedef int Out;
#else
typedef T Out;
#endif

extern "C" __global__ void __launch_bounds__(32 * ROWS)
    reduce_columns_shared(const T* __restrict__ x, Out* __restrict__ out, int outer, int axis, int inner) {
    // x [outer][axis][inner]; out [outer][inner]
    __shared__ Part shared[ROWS][32];
    const int column = blockIdx.y * 32 + threadIdx.x;
    const T* source = x + (size_t)blockIdx.x * axis * inner + column;
    Part part = Part::empty();
    if (column < inner) {
        for (int a = threadIdx.y; a < axis; a += ROWS) part.add((float)source[(size_t)a * inner], a);
    }
    shared[threadIdx.y][threadIdx.x] = part;
    __syncthreads();
    if (threadIdx.y != 0 || column >= inner) return;
#pragma unroll
    for (int row = 1; row < ROWS; ++row) part.join(shared[row][threadIdx.x]);
    out[(size_t)blockIdx.x * inner + column] = part.result<Out>(axis);
}
