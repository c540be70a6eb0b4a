// /// opbench
// title     = "one warp streams ROWS rows of weights in 16-byte loads, for up to 8 rows of x"
// builds_on = "warp_per_output"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "block_reduction", "warp_shuffle"]
// supports  = { epilogue = ["bias", "bias_relu"], dtype = ["f32", "bf16"] }
// define.BF16   = "1 if dtype == 'bf16' else 0"
// define.RELU   = "1 if epilogue == 'bias_relu' else 0"
// define.M_TILE = "1 if m == 1 else 2 if m == 2 else 4 if m <= 4 else 8"
// tune      = { ROWS = [4, 2, 8], DEPTH = [2, 1], WARPS = [4, 8] }
// where     = ["ROWS * DEPTH in (4, 8)", "ROWS != 4 or DEPTH == 2"]
//
// [[launch]]
// kernel = "linear_warp_rows"
// grid   = ["cdiv(m, 8) * cdiv(n, ROWS * WARPS)"]
// block  = [32, "WARPS"]
// ///
//
// A lane has ROWS * DEPTH loads of 16 bytes in flight before it uses the first, so 16 warps keep 32 to 64 KB in flight
// on a multiprocessor, as DRAM's latency requires. A weight in a register is multiplied by up to 8 rows of x, so the
// weights are read once; x is read from L1, once for ROWS rows of weights. Blocks with the same weights and other rows
// of x are neighbours, so the second of them reads the weights from L2. Limit: a warp processes all of k alone, so few
// rows n leave multiprocessors idle, and at the end all warps stop together with nothing in flight. After the
// matrix-vector kernels of llama.cpp and of FasterTransformer.

#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
typedef unsigned short Bits;
#else
typedef float T;
typedef unsigned Bits;
#endif
#define VEC (BF16 ? 8 : 4)  // numbers in 16 bytes
#define SUMS (M_TILE * ROWS)

// Load 16 bytes of a row of length k from element i on, with zeros after its end. `aligned`: k is a multiple of VEC, so
// the 16 bytes are all inside or all outside, and aligned.
__device__ __forceinline__ uint4 load16(const T* __restrict__ row, int i, int k, bool aligned) {
    if (aligned) return i < k ? *reinterpret_cast<const uint4*>(row + i) : make_uint4(0u, 0u, 0u, 0u);
    const Bits* p = reinterpret_cast<const Bits*>(row);
    unsigned word[4] = {};
#pragma unroll
    for (int j = 0; j < VEC; ++j)
        if (i + j < k) word[BF16 ? j / 2 : j] |= (unsigned)p[i + j] << (BF16 ? j % 2 * 16 : 0);
    return make_uint4(word[0], word[1], word[2], word[3]);
}

__device__ __forceinline__ void unpack(uint4 raw, float (&value)[VEC]) {
    const unsigned word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#if BF16
        value[2 * j] = __uint_as_float(word[j] << 16);  // a bf16 is the upper half of a float
        value[2 * j + 1] = __uint_as_float(word[j] & 0xffff0000u);
#else
        value[j] = __uint_as_float(word[j]);
#endif
    }
}

// sum[mm * ROWS + r] += x[row0 + mm] . w[r] over the VEC elements from i on; rows of x after the last one repeat it.
__device__ __forceinline__ void multiply(float (&sum)[SUMS], const uint4 (&w)[ROWS], const T* __restrict__ x, int row0,
                                         int i, int m, int k, bool aligned) {
    float wide[ROWS][VEC];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) unpack(w[r], wide[r]);
#pragma unroll
    for (int mm = 0; mm < M_TILE; ++mm) {
        float part[VEC];
        unpack(load16(x + (size_t)min(row0 + mm, m - 1) * k, i, k, aligned), part);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int j = 0; j < VEC; ++j) sum[mm * ROWS + r] += part[j] * wide[r][j];
    }
}

// Add SUMS values over the lanes. At each step, a lane sends half of its values to its partner and keeps the sums of
// the other half, so SUMS = 32 takes 31 shuffles instead of 160. Afterwards sum[0] (...) is the total of value lane *
// SUMS / 32 (+ 1, ...).
__device__ __forceinline__ void add_lanes(float (&sum)[SUMS], int lane) {
    int count = SUMS;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        if (count > 1) {
            count /= 2;
            const bool upper = lane & offset;
#pragma unroll
            for (int j = 0; j < count; ++j) {
                const float sent = upper ? sum[j] : sum[j + count];
                const float retained = upper ? sum[j + count] : sum[j];
                sum[j] = retained + __shfl_xor_sync(0xffffffffu, sent, offset);
            }
        } else {
            sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], offset);
        }
    }
}

__device__ __forceinline__ void finish(float sum, const T* __restrict__ bias, T* __restrict__ out, int row, int col,
                                       int m, int n) {
    if (row >= m || col >= n) return;
#if BF16
    sum += __bfloat162float(bias[col]);
    out[(size_t)row * n + col] = __float2bfloat16(RELU ? fmaxf(sum, 0.0f) : sum);
#else
    sum += bias[col];
    out[(size_t)row * n + col] = RELU ? fmaxf(sum, 0.0f) : sum;
#endif
}

// x [m, k], weight [n, k], bias [n], out [m, n]; a warp computes M_TILE x ROWS outputs.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    linear_warp_rows(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                     T* __restrict__ out, int m, int n, int k) {
    const int tiles_m = (m + 7) / 8;
    const int row0 = blockIdx.x % tiles_m * 8, col0 = (blockIdx.x / tiles_m * WARPS + threadIdx.y) * ROWS;
    const int lane = threadIdx.x;
    if (col0 >= n) return;  // the whole warp
    const bool aligned = k % VEC == 0;
    const T* from[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) from[r] = weight + (size_t)min(col0 + r, n - 1) * k;
    float sum[SUMS] = {};
    for (int i = lane * VEC; i < k; i += 32 * VEC * DEPTH) {
        uint4 w[DEPTH][ROWS];  // all loads first, so that they are under way together
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
#pragma unroll
            for (int r = 0; r < ROWS; ++r) w[d][r] = load16(from[r], i + d * 32 * VEC, k, aligned);
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) multiply(sum, w[d], x, row0, i + d * 32 * VEC, m, k, aligned);
    }
    add_lanes(sum, lane);
    constexpr int LANES = SUMS < 32 ? 32 / SUMS : 1, LEFT = SUMS < 32 ? 1 : SUMS / 32;
    if (lane % LANES != 0) return;
#pragma unroll
    for (int j = 0; j < LEFT; ++j) {
        const int value = lane / LANES * LEFT + j;
        finish(sum[j], bias, out, row0 + value / ROWS, col0 + value % ROWS, m, n);
    }
}
