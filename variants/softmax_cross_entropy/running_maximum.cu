// /// opbench
// title     = "loss without gradient: online softmax in one pass; each new maximum rescales the sum"
// builds_on = "cluster"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "warp_shuffle", "unrolled", "compile_time_sizes",
//     "fewer_passes", "fused",
// ]
// tune      = { THREADS = [512, 256], UNROLL = [4, 2], STREAM = [1, 0] }
// supports  = { dtype = ["f32", "bf16"], gradient = ["no"] }
// workspace = { partial = "rows" }
//
// [define]
// BF16  = "dtype == 'bf16'"
// COLS  = "cols"
// LANES = "lanes"
//
// [[launch]]
// kernel = "row_losses"
// grid   = ["rows"]
// block  = ["THREADS"]
// args   = ["logits", "labels", "partial"]
//
// [[launch]]
// kernel = "mean_of_partials"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["partial", "loss", "rows", "micro"]
// ///
//
// Without a gradient, no element is needed twice, so the row does not stay in registers. Each thread keeps a maximum
// and the sum of exponentials relative to it, and processes UNROLL vectors at a time. After the first vectors a new
// maximum is rare, and only then the sum is multiplied by one more exponential. The threads of a block combine their
// results once, at the end of the row, and many blocks share a multiprocessor, so some of them always have loads in
// flight. In `cluster`, which keeps rows, there are few threads, and they wait for each other. Limit: HBM; for an odd
// number of columns, loads of single elements. Idea: Milakov and Gimelshein, "Online normalizer calculation for
// softmax" (2018).

#include <opbench/activations.cuh>
#include <opbench/loss.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Packed<T, LANES> Pack;
constexpr int VECTORS = COLS / LANES, WARPS = THREADS / 32;

extern "C" __global__ void __launch_bounds__(THREADS)
    row_losses(const Pack* __restrict__ logits, const int* __restrict__ labels, float* __restrict__ partial) {
    // logits [rows][VECTORS]; labels, partial [rows]
    __shared__ float maxima[1][WARPS], sums[1][WARPS];
    const Pack* row = logits + (size_t)blockIdx.x * VECTORS;
    const float lowest = __int_as_float(0xff800000), nan = __int_as_float(0x7fc00000);  // lowest: -infinity
    const int label = labels[blockIdx.x];
    float largest = lowest, sum = 0.0f;
    for (int first = threadIdx.x; first < VECTORS; first += UNROLL * THREADS) {
        Pack pack[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (first + u * THREADS < VECTORS) pack[u] = load_packed<STREAM>(row + first + u * THREADS);
        float next = largest;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (first + u * THREADS < VECTORS)
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane) next = fmaxf(next, lane_of<T>(pack[u], lane));
        if (next > largest) {
            sum *= power_of_two((largest - next) * log2_e);
            largest = next;
        }
        const float centre = largest == lowest ? 0.0f : largest;  // 0 if all logits so far are -infinity, to avoid NaN
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (first + u * THREADS < VECTORS) {
                float part = 0.0f;
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane)
                    part += power_of_two((lane_of<T>(pack[u], lane) - centre) * log2_e);
                sum += part;
            }
    }
    const float peak = over_row<true, THREADS>(largest, maxima);
    if (largest != peak) sum *= power_of_two((largest - peak) * log2_e);
    sum = over_row<false, THREADS>(sum, sums);
    if (threadIdx.x == 0) {
        const bool valid = label >= 0 && label < COLS;
        const float label_logit = valid ? (float)reinterpret_cast<const T*>(row)[label] : nan;
        partial[blockIdx.x] = logf(sum) - (label_logit - peak);
    }
}

extern "C" __global__ void __launch_bounds__(1024)
    mean_of_partials(const float* __restrict__ partial, float* __restrict__ loss, int rows, int micro) {
    // partial [rows]; loss [1]; one block of 1024 threads
    store_mean_loss(partial, loss, rows, rows, micro);
}
