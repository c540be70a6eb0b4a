// /// opbench
// title     = "long rows: persistent blocks keep a row in registers and shared memory and load the next row"
// builds_on = "cluster"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "fewer_passes", "fused", "double_buffer", "async_copy", "persistent",
// ]
// tune      = { THREADS = [1024, 512], STREAM = [0, 1] }
// supports  = { dtype = ["f32", "bf16"] }
// requires  = ["cols >= 8192", "BYTES == 16", "HELD * THREADS <= 6144"]
// workspace = { partial = "rows" }
// compute_capability = "9.0"
//
// [define]
// BF16  = "dtype == 'bf16'"
// COLS  = "cols"
// LANES = "lanes"
// BYTES = "lanes * (2 if dtype == 'bf16' else 4)"
// ITEMS = "cdiv(cols // lanes, THREADS)"
// HELD  = "min(ITEMS, max(4096 // THREADS, ITEMS - 13312 // THREADS))"
//
// [[launch]]
// kernel = "loss_and_gradient"
// grid   = ["min(rows, sm_count)"]
// block  = ["THREADS"]
// shared = "(ITEMS - HELD) * THREADS * 16"
// args   = ["logits", "labels", "dlogits", "partial", "rows", "micro"]
//
// [[launch]]
// kernel = "mean_of_partials"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["partial", "loss", "rows", "micro"]
// ///
//
// The blocks of a cluster start together and wait for each other, which leaves multiprocessors idle. One multiprocessor
// has room for a whole row of 128256 bf16 elements: a quarter of its 256 KB is in registers, the rest in shared memory.
// Each thread reads only vectors that it has copied itself, so the only barriers are those of the maximum and the sum.
// As soon as a vector's gradient is stored, the same vector of the next row is copied to its place. So reads and writes
// overlap, and DRAM is idle only while a row's exponentials are added. Limit: HBM. Rows of 50304 bf16 elements fit into
// registers; for them the previous variant with CLUSTER=1 is faster.

#include <opbench/activations.cuh>
#include <opbench/loss.cuh>
#include <opbench/tile.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Packed<T, LANES> Pack;
constexpr int VECTORS = COLS / LANES, WARPS = THREADS / 32;

// The vectors of a row that belong to this thread: k * THREADS + threadIdx.x for each k < ITEMS.
__device__ __forceinline__ bool exists(int k) {
    return (k + 1) * THREADS <= VECTORS || k * THREADS + threadIdx.x < VECTORS;
}

struct Row {
    Pack held[HELD];
    Pack* rest;  // in shared memory, [ITEMS - HELD][THREADS] from this thread's place on

    __device__ __forceinline__ Pack pack(int k) const { return k < HELD ? held[k] : rest[(k - HELD) * THREADS]; }
    // Keep the vectors as they are stored; the compiler would otherwise keep their elements as floats.
    __device__ __forceinline__ void repack() {
#pragma unroll
        for (int k = 0; k < HELD; ++k) held[k] = opaque(held[k]);
    }
    // Start to fetch vector k; `source` is the thread's place in a row.
    __device__ __forceinline__ void fetch(int k, const Pack* source) {
        if (!exists(k)) return;
        if (k < HELD)
            held[k] = load_packed<STREAM>(source + k * THREADS);
        else
            copy_chunk(rest + (k - HELD) * THREADS, source + k * THREADS, 16);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    loss_and_gradient(const Pack* __restrict__ logits, const int* __restrict__ labels, Pack* __restrict__ dlogits,
                      float* __restrict__ partial, int rows, int micro) {
    // logits, dlogits [rows][VECTORS]; labels, partial [rows]
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float maxima[1][WARPS], sums[1][WARPS];
    const float lowest = __int_as_float(0xff800000), nan = __int_as_float(0x7fc00000);  // -infinity
    const float scale = 1.0f / (float)((long long)rows * micro);
    Row row;
    row.rest = reinterpret_cast<Pack*>(shared) + threadIdx.x;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) row.fetch(k, logits + (size_t)blockIdx.x * VECTORS + threadIdx.x);
    commit();
    for (int number = blockIdx.x; number < rows; number += gridDim.x) {
        const int label = labels[number];
        const bool valid = label >= 0 && label < COLS;
        float largest = lowest;
        wait<0>();
#pragma unroll
        for (int k = 0; k < ITEMS; ++k)
            if (exists(k)) {
                const Pack pack = row.pack(k);
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane) largest = fmaxf(largest, lane_of<T>(pack, lane));
            }
        largest = over_row<true, THREADS>(largest, maxima);
        row.repack();
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < ITEMS; ++k)
            if (exists(k)) {
                const Pack pack = row.pack(k);
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane)
                    sum += power_of_two((lane_of<T>(pack, lane) - largest) * log2_e);
            }
        sum = over_row<false, THREADS>(sum, sums);
        row.repack();
        if (threadIdx.x == 0) {
            const T* elements = reinterpret_cast<const T*>(logits) + (size_t)number * COLS;
            partial[number] = valid ? logf(sum) - ((float)elements[label] - largest) : nan;
        }
        const float factor = valid ? 1.0f / sum : nan;
        const Pack* next = logits + (size_t)(number + gridDim.x) * VECTORS + threadIdx.x;
        Pack* target = dlogits + (size_t)number * VECTORS + threadIdx.x;
        const bool more = number + gridDim.x < rows;
#pragma unroll
        for (int k = ITEMS - 1; k >= 0; --k) {  // vectors in shared memory first: copies to it need no registers
            if (!exists(k)) continue;
            const Pack pack = row.pack(k);
            const int column = (k * THREADS + threadIdx.x) * LANES;
            Vector<T, LANES> result;
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                const float p = power_of_two((lane_of<T>(pack, lane) - largest) * log2_e) * factor;
                result.lane(lane) = (T)((p - (column + lane == label ? 1.0f : 0.0f)) * scale);
            }
            store_packed<STREAM>(target + k * THREADS, result.raw);
            if (more) row.fetch(k, next);
        }
        commit();
    }
}

extern "C" __global__ void __launch_bounds__(1024)
    mean_of_partials(const float* __restrict__ partial, float* __restrict__ loss, int rows, int micro) {
    // partial [rows]; loss [1]; one block of 1024 threads
    store_mean_loss(partial, loss, rows, rows, micro);
}
