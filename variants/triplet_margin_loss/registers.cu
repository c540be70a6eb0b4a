// /// opbench
// title     = "all three rows in registers, with as many threads as they need: each input is read once"
// builds_on = "vectorised"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "warp_shuffle", "compile_time_sizes", "fewer_barriers",
//     "fewer_passes", "fused",
// ]
// tune      = { ITEMS = [2, 1, 4], STREAM = [0, 1] }
// supports  = { dtype = ["f32", "bf16"] }
// requires  = ["THREADS <= 1024", "THREADS * (16 * ITEMS + 64) <= 65536"]
// workspace = { losses = "rows" }
//
// [define]
// BF16           = "dtype == 'bf16'"
// COLS           = "cols"
// LANES          = "lanes"
// VECTORS        = "cols // lanes"
// THREADS        = "8 if VECTORS <= 8 else (16 if VECTORS <= 16 else 32 * cdiv(VECTORS, 32 * ITEMS))"
// ROWS_PER_BLOCK = "max(1, 128 // THREADS)"
//
// [[launch]]
// kernel = "loss_and_gradients"
// grid   = ["cdiv(rows, ROWS_PER_BLOCK)"]
// block  = ["THREADS", "ROWS_PER_BLOCK"]
// args   = ["anchor", "positive", "negative", "danchor", "dpositive", "dnegative", "losses", "rows", "micro"]
//
// [[launch]]
// kernel = "mean_of_losses"
// grid   = [1]
// block  = [1024]
// args   = ["losses", "loss", "rows", "micro"]
// ///
//
// All loads of a row are in flight together, and nothing is read again. Short rows share a block. STREAM marks all
// accesses evict-first in L2. Limit: HBM, six arrays; if the row length is not a multiple of a vector, narrower
// accesses.

#include <opbench/row_norm.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef RowPart<T, COLS, LANES, THREADS> Row;

// Return x - y + 1e-6. PyTorch adds 1e-6 to each difference, so that a distance of 0 has a derivative.
__device__ __forceinline__ float difference(float x, float y) { return x - y + 1e-6f; }

// Return the loss of a row; store the factors of its differences in the gradient in `near` and `far`.
__device__ __forceinline__ float loss_of_row(float positive, float negative, float scale, float& near, float& far) {
    const float loss = 1.0f + positive - negative;
    near = loss < 0.0f || positive <= 0.0f ? 0.0f : scale / positive;
    far = loss < 0.0f || negative <= 0.0f ? 0.0f : scale / negative;
    return loss < 0.0f ? 0.0f : loss;  // fmaxf would lose NaN
}

// Return the sum of `value` over the block, added in a fixed order, in thread 0.
template <int threads>
__device__ __forceinline__ float block_sum(float value) {
    __shared__ float warps[threads / 32];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xffffffffu, value, distance);
    __syncthreads();  // all threads have read the sums of the previous call
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x >= 32) return 0.0f;
    value = threadIdx.x < threads / 32 ? warps[threadIdx.x] : 0.0f;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xffffffffu, value, distance);
    return value;
}

extern "C" __global__ void __launch_bounds__(THREADS* ROWS_PER_BLOCK)
    loss_and_gradients(const T* __restrict__ anchor, const T* __restrict__ positive, const T* __restrict__ negative,
                       T* __restrict__ danchor, T* __restrict__ dpositive, T* __restrict__ dnegative,
                       float* __restrict__ losses, int rows, int micro) {
    // all tensors [rows][COLS]; losses [rows]
    __shared__ float sums[ROWS_PER_BLOCK][(THREADS + 31) / 32][2];
    // may exceed the last row: all threads take part in shuffles and barriers
    const int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;
    Row a, p, n;
    a.load<STREAM>(anchor, row, row < rows);
    p.load<STREAM>(positive, row, row < rows);
    n.load<STREAM>(negative, row, row < rows);
    float squared[2] = {};
#pragma unroll
    for (int k = 0; k < Row::items; ++k) {
        if (!Row::has_vector(k)) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float to_positive = difference(a.value(k, lane), p.value(k, lane));
            const float to_negative = difference(a.value(k, lane), n.value(k, lane));
            squared[0] += to_positive * to_positive;
            squared[1] += to_negative * to_negative;
        }
    }
    row_sums<THREADS>(squared, sums);
    if (row >= rows) return;
    float near, far;
    const float loss =
        loss_of_row(sqrtf(squared[0]), sqrtf(squared[1]), 1.0f / (float)((long long)rows * micro), near, far);
    if (threadIdx.x == 0) losses[row] = loss;
#pragma unroll
    for (int k = 0; k < Row::items; ++k) {
        if (!Row::has_vector(k)) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float to_positive = difference(a.value(k, lane), p.value(k, lane)) * near;
            const float to_negative = difference(a.value(k, lane), n.value(k, lane)) * far;
            a.set(k, lane, to_positive - to_negative);
            p.set(k, lane, -to_positive);
            n.set(k, lane, to_negative);
        }
    }
    a.store<STREAM>(danchor, row);
    p.store<STREAM>(dpositive, row);
    n.store<STREAM>(dnegative, row);
}

extern "C" __global__ void __launch_bounds__(1024)
    mean_of_losses(const float* __restrict__ losses, float* __restrict__ loss, int rows, int micro) {
    // losses [rows]; loss [1]; one block of 1024 threads
    float sum = 0.0f, excess = 0.0f;  // Kahan summation, because many losses would lose digits
    for (int i = threadIdx.x; i < rows; i += 1024) {
        const float compensated = losses[i] - excess, next = sum + compensated;
        excess = (next - sum) - compensated;
        sum = next;
    }
    sum = block_sum<1024>(sum);
    if (threadIdx.x == 0) loss[0] = sum / (float)((long long)rows * micro);
}
