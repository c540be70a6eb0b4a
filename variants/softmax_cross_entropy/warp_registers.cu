// /// opbench
// title     = "one warp per row, which keeps the row in registers: read once, no barrier"
// builds_on = "block_per_row"
// mechanism = [
//     "coalesced", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes", "fewer_passes",
//     "fused",
// ]
// tune      = { ROWS_PER_BLOCK = [4, 8, 2] }
// define    = { BF16 = "dtype == 'bf16'", COLS = "cols" }
// supports  = { dtype = ["f32", "bf16"] }
// requires  = ["cols <= 2048"]
// workspace = { partial = "rows" }
//
// [[launch]]
// kernel = "loss_and_gradient"
// grid   = ["cdiv(rows, ROWS_PER_BLOCK)"]
// block  = ["32", "ROWS_PER_BLOCK"]
// args   = ["logits", "labels", "dlogits", "partial", "rows", "micro"]
//
// [[launch]]
// kernel = "mean_of_partials"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["partial", "loss", "rows", "rows", "micro"]
// ///
//
// All loads of a row are in flight together, and its elements stay in the lanes' registers, so logits are read once and
// the gradient is written once: half the bytes of separate kernels for softmax and loss. The logit of the label is
// loaded from memory again (a cache hit), because registers cannot be indexed at run time. Limits: only 4 bytes (2 in
// bf16) per access; with 2048 columns a lane holds 64 elements.

#include <opbench/loss.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;

constexpr int ITEMS = (COLS + 31) / 32;

extern "C" __global__ void __launch_bounds__(32 * ROWS_PER_BLOCK)
    loss_and_gradient(const T* __restrict__ logits, const int* __restrict__ labels, T* __restrict__ dlogits,
                      float* __restrict__ partial, int rows, int micro) {
    // logits, dlogits [rows][COLS]; labels, partial [rows]
    const int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;
    if (row >= rows) return;  // true for whole warps only, so shuffles stay safe
    const int label = labels[row];
    const bool valid = label >= 0 && label < COLS;
    const size_t base = (size_t)row * COLS;
    const float lowest = __int_as_float(0xff800000), nan = __int_as_float(0x7fc00000);  // lowest: -infinity
    const float scale = 1.0f / (float)((long long)rows * micro);
    const float of_label = valid ? (float)logits[base + label] : nan;
    float value[ITEMS], largest = lowest, sum = 0.0f;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int c = k * 32 + threadIdx.x;
        value[k] = COLS % 32 == 0 || c < COLS ? (float)logits[base + c] : lowest;
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) largest = fmaxf(largest, value[k]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        value[k] = __expf(value[k] - largest);
        sum += value[k];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) partial[row] = logf(sum) - (of_label - largest);
    const float factor = valid ? 1.0f / sum : nan;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int c = k * 32 + threadIdx.x;
        if (COLS % 32 == 0 || c < COLS) {
            dlogits[base + c] = (T)((value[k] * factor - (c == label ? 1.0f : 0.0f)) * scale);
        }
    }
}

extern "C" __global__ void __launch_bounds__(1024)
    mean_of_partials(const float* __restrict__ partial, float* __restrict__ loss, int count, int rows, int micro) {
    // partial [count]; loss [1]; one block of 1024 threads
    store_mean_loss(partial, loss, count, rows, micro);
}
