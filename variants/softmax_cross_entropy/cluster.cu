// /// opbench
// title     = "long rows: a cluster of CLUSTER blocks keeps a row in registers: read once, written once"
// builds_on = "vectorised"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "fewer_passes", "fused", "cluster",
// ]
// tune      = { THREADS = [256, 512], CLUSTER = [4, 2, 8, 1], STREAM = [1, 0] }
// supports  = { dtype = ["f32", "bf16"], gradient = ["yes", "no"] }
// requires  = ["cols >= 8192", "ITEMS * cdiv(BYTES, 4) <= 56"]
// workspace = { partial = "rows" }
// compute_capability = "9.0"
//
// [define]
// BF16    = "dtype == 'bf16'"
// GRADIENT = "gradient == 'yes'"
// COLS    = "cols"
// LANES   = "lanes"
// PART    = "cdiv(cols // lanes, CLUSTER)"
// ITEMS   = "cdiv(PART, THREADS)"
// BYTES   = "lanes * (2 if dtype == 'bf16' else 4)"
//
// [[launch]]
// kernel  = "loss_and_gradient"
// grid    = ["rows * CLUSTER"]
// block   = ["THREADS"]
// cluster = ["CLUSTER"]
// args    = ["logits", "labels", "dlogits?", "partial", "rows", "micro"]
//
// [[launch]]
// kernel = "mean_of_partials"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["partial", "loss", "rows", "micro"]
// ///
//
// A vocabulary of 128256 in bf16 has 256 KB per row, more than the registers or the shared memory of one block. The
// blocks of the cluster keep their vectors as they are stored, 8 elements in 4 registers, and each computes the maximum
// and the sum of its part. One exchange through distributed shared memory merges both, so the cluster waits only once.
// Exponentials are computed twice instead of being stored. Limit: HBM; for an odd number of columns, loads of single
// elements.

#include <opbench/activations.cuh>
#include <opbench/barrier.cuh>
#include <opbench/loss.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Packed<T, LANES> Pack;
constexpr int VECTORS = COLS / LANES, WARPS = THREADS / 32;

extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    loss_and_gradient(const Pack* __restrict__ logits, const int* __restrict__ labels,
#if GRADIENT
                      Pack* __restrict__ dlogits,
#endif
                      float* __restrict__ partial, int rows, int micro) {
    // logits, dlogits [rows][VECTORS]; labels, partial [rows]
    __shared__ float maxima[1][WARPS], sums[1][WARPS];
    __shared__ float part[2];  // the maximum of this block's part, and its sum of exp(x - maximum)
    const int row = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER;
    const int first = rank * PART + threadIdx.x, end = min(VECTORS, (rank + 1) * PART);
    const size_t base = (size_t)row * VECTORS + first;
    const float lowest = __int_as_float(0xff800000), nan = __int_as_float(0x7fc00000);  // lowest: -infinity
    const int label = labels[row];
    const bool valid = label >= 0 && label < COLS;
    Pack pack[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k)
        if (first + k * THREADS < end) pack[k] = load_packed<STREAM>(logits + base + k * THREADS);
    float largest = lowest;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (first + k * THREADS >= end) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) largest = fmaxf(largest, lane_of<T>(pack[k], lane));
    }
    largest = over_row<true, THREADS>(largest, maxima);
    const float centre = largest == lowest ? 0.0f : largest;  // 0 if all logits of the part are -infinity, to avoid NaN
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (first + k * THREADS >= end) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) sum += power_of_two((lane_of<T>(pack[k], lane) - centre) * log2_e);
    }
    sum = over_row<false, THREADS>(sum, sums);
#if CLUSTER > 1
    if (threadIdx.x == 0) {
        part[0] = largest;
        part[1] = sum;
    }
    cluster_sync();
    float block_maxima[CLUSTER], own_sums[CLUSTER];
    largest = lowest;
#pragma unroll
    for (int block = 0; block < CLUSTER; ++block) {
        const unsigned address = address_in(shared_address(part), block);
        block_maxima[block] = load_remote(address);
        own_sums[block] = load_remote(address + 4);
        largest = fmaxf(largest, block_maxima[block]);
    }
    cluster_arrive();  // this block has read the values of the other blocks
    sum = 0.0f;
#pragma unroll
    for (int block = 0; block < CLUSTER; ++block)
        sum += own_sums[block] * power_of_two((block_maxima[block] - largest) * log2_e);
#endif
    if (rank == 0 && threadIdx.x == 0) {
        const float label_logit = valid ? (float)reinterpret_cast<const T*>(logits)[(size_t)row * COLS + label] : nan;
        partial[row] = logf(sum) - (label_logit - largest);
    }
#if GRADIENT
    const float scale = 1.0f / (float)((long long)rows * micro), factor = valid ? 1.0f / sum : nan;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (first + k * THREADS >= end) break;
        const int column = (first + k * THREADS) * LANES;
        Vector<T, LANES> result;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float p = power_of_two((lane_of<T>(pack[k], lane) - largest) * log2_e) * factor;
            result.lane(lane) = (T)((p - (column + lane == label ? 1.0f : 0.0f)) * scale);
        }
        store_packed<STREAM>(dlogits + base + k * THREADS, result.raw);
    }
#endif
#if CLUSTER > 1
    cluster_wait();  // the other blocks have read the values of this block
#endif
}

extern "C" __global__ void __launch_bounds__(1024)
    mean_of_partials(const float* __restrict__ partial, float* __restrict__ loss, int rows, int micro) {
    // partial [rows]; loss [1]; one block of 1024 threads
    store_mean_loss(partial, loss, rows, rows, micro);
}
