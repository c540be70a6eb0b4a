// /// opbench
// title     = "one warp per row, which keeps the row in registers: read once, no barrier"
// builds_on = "online"
// mechanism = [
//     "coalesced", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes", "fewer_passes",
// ]
// tune      = { ROWS_PER_BLOCK = [4, 8, 2] }
// define    = { BF16 = "dtype == 'bf16'", LOG = "log == 'yes'", COLS = "cols" }
// supports  = { log = ["no", "yes"], dtype = ["f32", "bf16"] }
// requires  = ["cols <= 2048"]
//
// [[launch]]
// kernel = "softmax_warp_registers"
// grid   = ["cdiv(rows, ROWS_PER_BLOCK)"]
// block  = ["32", "ROWS_PER_BLOCK"]
// ///
//
// All loads of a row are in flight together, and its elements stay in the lanes' registers, so the row is read once and
// written once. Five shuffles replace each reduction over a block. Limits: only 4 bytes (2 in bf16) per access, and
// registers: with 2048 columns a lane holds 64 elements.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int ITEMS = (COLS + 31) / 32;

extern "C" __global__ void __launch_bounds__(32 * ROWS_PER_BLOCK)
    softmax_warp_registers(const T* __restrict__ x, T* __restrict__ out, int rows, int cols) {
    // x, out [rows][COLS]
    const int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;
    if (row >= rows) return;  // true for whole warps only, so shuffles stay safe
    const size_t base = (size_t)row * COLS + threadIdx.x;
    const float lowest = __int_as_float(0xff800000);  // -infinity
    float value[ITEMS], largest = lowest, sum = 0.0f;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        value[k] = COLS % 32 == 0 || k * 32 + threadIdx.x < COLS ? (float)x[base + k * 32] : lowest;
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) largest = fmaxf(largest, value[k]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        value[k] -= largest;
        const float power = __expf(value[k]);
        sum += power;
        if (!LOG) value[k] = power;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const float last = LOG ? logf(sum) : 1.0f / sum;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (COLS % 32 == 0 || k * 32 + threadIdx.x < COLS)
            out[base + k * 32] = (T)(LOG ? value[k] - last : value[k] * last);
    }
}
