// /// opbench
// title     = "counting sort of the indices; blocks add CHUNK sorted rows each, a last pass adds sums of long runs"
// builds_on = "scan_indices"
// mechanism = ["coalesced", "vectorised_access", "unrolled"]
// tune      = { BLOCK = [128, 64], CHUNK = [32, 64, 16] }
// supports  = { dtype = ["f32", "bf16"] }
// requires  = ["cdiv(features // lanes, BLOCK) <= 65535"]
//
// [define]
// BF16    = "dtype == 'bf16'"
// LANES   = "lanes"
// VECTORS = "features // lanes"
//
// [workspace]
// sorted_items = "rows"
// sorted_rows  = "rows"
// parts        = "cdiv(rows, CHUNK) * 2 * features"
//
// [[launch]]
// zero = "ddata"
//
// [[launch]]
// kernel = "gather_backward_sort"
// grid   = ["cdiv(rows, 32)"]
// block  = [32, 8]
// args   = ["order", "sorted_items", "sorted_rows", "rows"]
//
// [[launch]]
// kernel = "gather_backward_chunks"
// grid   = ["cdiv(rows, CHUNK)", "cdiv(VECTORS, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["dbatch", "sorted_items", "sorted_rows", "ddata", "parts", "rows"]
//
// [[launch]]
// kernel = "gather_backward_join"
// grid   = ["cdiv(rows, CHUNK)", "cdiv(VECTORS, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["sorted_items", "ddata", "parts", "rows"]
// ///
//
// After sorting, the position of a row is the number of smaller indices plus the number of equal indices before it.
// This takes rows * rows comparisons, which need no atomics and are few compared with the bytes of the table. Equal
// indices (a run) are then neighbours. A block adds the runs of its chunk. For a run that crosses chunks, each block
// stores a partial sum, and the block of the run's first chunk adds them in order. So many blocks share a frequent
// token, and the bits are the same in every run of the program. Limit: filling the table with zeros, which has more
// bytes than dbatch.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int FEATURES = VECTORS * LANES;

// Values: neighbouring elements of a row, one load; Sums: their sums, one store.
struct alignas(sizeof(T) * LANES) Values { T lane[LANES]; };
struct alignas(4 * (LANES < 4 ? LANES : 4)) Sums { float lane[LANES]; };

// order, sorted_items, sorted_rows [rows]; a block sorts 32 rows, with 8 threads per row
extern "C" __global__ void __launch_bounds__(256)
    gather_backward_sort(const int* __restrict__ order, int* __restrict__ sorted_items, int* __restrict__ sorted_rows,
                         int rows) {
    __shared__ int counts[8][32];
    const int row = blockIdx.x * 32 + threadIdx.x, item = row < rows ? order[row] : 0;
    const int step = (rows + 7) / 8, begin = threadIdx.y * step, end = min(rows, begin + step);
    int smaller = 0;
#pragma unroll 8
    for (int other = begin; other < end; ++other) {
        const int other_item = order[other];
        smaller += other_item < item || other_item == item && other < row;
    }
    counts[threadIdx.y][threadIdx.x] = smaller;
    __syncthreads();
    if (threadIdx.y > 0 || row >= rows) return;
    int place = 0;
#pragma unroll
    for (int y = 0; y < 8; ++y) place += counts[y][threadIdx.x];
    sorted_items[place] = item;
    sorted_rows[place] = row;
}

// dbatch [rows][FEATURES]; ddata [items][FEATURES], zero at the start; parts [chunks][2][FEATURES]: the sum of a run
// that began before the chunk, then of one that continues after it
extern "C" __global__ void __launch_bounds__(BLOCK)
    gather_backward_chunks(const Values* __restrict__ dbatch, const int* __restrict__ sorted_items,
                           const int* __restrict__ sorted_rows, Sums* __restrict__ ddata, Sums* __restrict__ parts,
                           int rows) {
    constexpr int AHEAD = 4;
    const int first = blockIdx.x * CHUNK, end = min(rows, first + CHUNK), column = blockIdx.y * BLOCK + threadIdx.x;
    if (column >= VECTORS) return;
    bool continues_previous = first > 0 && sorted_items[first - 1] == sorted_items[first];
    Sums sum = {};
    for (int start = first; start < end; start += AHEAD) {
        Values values[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i)
            if (start + i < end) values[i] = dbatch[(size_t)sorted_rows[start + i] * VECTORS + column];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const int place = start + i;
            if (place >= end) break;
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) sum.lane[lane] += (float)values[i].lane[lane];
            const int item = sorted_items[place];
            const bool continues = place + 1 < rows && sorted_items[place + 1] == item;
            if (continues && place + 1 < end) continue;
            if (continues_previous) {
                parts[(size_t)blockIdx.x * 2 * VECTORS + column] = sum;
            } else if (continues) {
                parts[((size_t)blockIdx.x * 2 + 1) * VECTORS + column] = sum;
            } else {
                ddata[(size_t)item * VECTORS + column] = sum;
            }
            continues_previous = false;
            sum = {};
        }
    }
}

// In the block of the chunk in which a run begins, add the run's partial sums of this chunk and of the following ones.
extern "C" __global__ void __launch_bounds__(BLOCK)
    gather_backward_join(const int* __restrict__ sorted_items, Sums* __restrict__ ddata, const Sums* __restrict__ parts,
                         int rows) {
    const int first = blockIdx.x * CHUNK, end = min(rows, first + CHUNK), column = blockIdx.y * BLOCK + threadIdx.x;
    const int item = sorted_items[end - 1];
    if (end == rows || sorted_items[end] != item) return;      // no run continues after this chunk
    if (first > 0 && sorted_items[first - 1] == item) return;  // the run began in an earlier chunk
    if (column >= VECTORS) return;
    Sums sum = parts[((size_t)blockIdx.x * 2 + 1) * VECTORS + column];
    for (int chunk = blockIdx.x + 1; chunk * CHUNK < rows && sorted_items[chunk * CHUNK] == item; ++chunk) {
        const Sums part = parts[(size_t)chunk * 2 * VECTORS + column];
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) sum.lane[lane] += part.lane[lane];
    }
    ddata[(size_t)item * VECTORS + column] = sum;
}
