// /// opbench
// title     = "one warp per row, which keeps the row in registers: read once, no barrier"
// builds_on = "block_per_row"
// mechanism = [
//     "coalesced", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes", "fewer_passes",
// ]
// tune      = { ROWS_PER_BLOCK = [4, 8, 2] }
// define    = { BF16 = "dtype == 'bf16'", ADD = "residual == 'add'", COLS = "cols" }
// supports  = { dtype = ["f32", "bf16"], residual = ["none", "add"] }
// requires  = ["cols <= 2048"]
//
// [[launch]]
// kernel = "rmsnorm_warp_registers"
// grid   = ["cdiv(rows, ROWS_PER_BLOCK)"]
// block  = ["32", "ROWS_PER_BLOCK"]
// args   = ["x", "residual?", "weight", "out", "rstd", "sum?", "rows"]
// ///
//
// All loads of a row are in flight together, and its elements stay in the lanes' registers, so the row is read once and
// written once. Five shuffles replace each reduction over a block. Limits: only 4 bytes (2 in bf16) per access, and
// registers: with 2048 columns a lane holds 64 elements.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int ITEMS = (COLS + 31) / 32;

// Return the sum of `value` over the lanes of a warp, in every lane.
__device__ __forceinline__ float over_warp(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

extern "C" __global__ void __launch_bounds__(32 * ROWS_PER_BLOCK)
    rmsnorm_warp_registers(const T* __restrict__ x,
#if ADD
                           const T* __restrict__ residual,
#endif
                           const float* __restrict__ weight, T* __restrict__ out, float* __restrict__ rstd,
#if ADD
                           T* total,
#endif
                           int rows) {
    // x, residual, out, total [rows][cols]; weight [cols]; rstd [rows]
    const int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;
    if (row >= rows) return;  // true for whole warps only, so shuffles stay safe
    const size_t base = (size_t)row * COLS + threadIdx.x;
    float value[ITEMS], squares = 0.0f;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        value[k] = COLS % 32 == 0 || k * 32 + threadIdx.x < COLS ? (float)x[base + k * 32] : 0.0f;
    }
#if ADD
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (COLS % 32 != 0 && k * 32 + threadIdx.x >= COLS) break;
        const T added = (T)(value[k] + (float)residual[base + k * 32]);
        total[base + k * 32] = added;
        value[k] = (float)added;
    }
#endif
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) squares += value[k] * value[k];
    const float factor = rsqrtf(over_warp(squares) / COLS + 1e-5f);
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int c = k * 32 + threadIdx.x;
        if (COLS % 32 == 0 || c < COLS) out[base + k * 32] = (T)(value[k] * factor * weight[c]);
    }
    if (threadIdx.x != 0) return;
    rstd[row] = factor;
}
