// /// opbench
// title     = "warp tiles and double buffering: the next tile is loaded to registers during the computation"
// builds_on = "vectorised"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "fewer_barriers", "double_buffer",
// ]
// tile      = { m = "BM", n = "BN", k = "BK" }
// tune      = { BM = [128, 64, 256], BN = [256, 128, 64], BK = [16, 8], TM = [8], TN = [16, 8] }
// where     = [
//   "(BM, BN) in ((64, 64), (128, 128), (128, 256), (256, 128))",
//   "TN == (8 if BM * BN <= 128 * 128 else 16)",
//   "(BM, BN, BK) != (128, 128, 16)",  # two blocks per multiprocessor leave 128 registers: too few
// ]
//
// [[launch]]
// kernel = "matmul_warp_tiles"
// grid   = ["cdiv(m, BM) * cdiv(n, BN)"]
// block  = ["BM * BN // (TM * TN)"]
// ///
//
// A warp computes a compact 64 x 32 or 64 x 64 tile, so its lanes read few distinct words of shared memory, which the
// hardware broadcasts. With 8 x 16 outputs, a thread needs 6 float4 loads for 128 multiply-adds. While one tile is
// multiplied, the next one is loaded from global memory into registers, and is stored to the other shared buffer at the
// end. So there is one barrier per tile, and the multiply-adds do not wait for global memory. Within a tile, the
// compiler already moves the shared loads of one step of k among the multiply-adds of the previous step; doing that in
// the source as well only costs registers, which then spill. Limit: the issue slots of the multiply-adds (about 91 % of
// all instructions in the loop at 128 x 256), then power. After CUTLASS's SIMT SGEMM (A. Kerr et al., 2017) and S.
// Gray's maxas.

#include <opbench/float_tile.cuh>
using namespace opbench;

#define THREADS (BM * BN / (TM * TN))
// Threads that must fit on a multiprocessor together; this leaves 255, 128 or 168 registers for each.
#define RESIDENT (TM * TN > 64 ? 256 : BM > 64 ? 512 : 384)
#define LANES_M 8  // a warp is 8 x 4 threads, so its tile is (8 * TM) x (4 * TN)
#define LANES_N 4
#define WARPS_N (BN / (LANES_N * TN))
#define A_PASSES (BM * BK / (4 * THREADS))  // float4 per thread and tile
#define B_PASSES (BK * BN / (4 * THREADS))
#define A_STEP (THREADS / (BK / 4))  // rows from one pass to the next
#define B_STEP (THREADS / (BN / 4))

// a [m, k], b [k, n], out [m, n]; a block computes BM x BN, a warp (8 * TM) x (4 * TN) of it, a thread TM x TN in
// groups of 4 x 4 that lie 4 * LANES_M rows and 4 * LANES_N columns apart.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
    matmul_warp_tiles(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, int m, int n,
                      int k) {
    static_assert(THREADS % 32 == 0 && BM % (LANES_M * TM) == 0 && BN % (LANES_N * TN) == 0, "whole warp tiles");
    static_assert(A_PASSES * 4 * THREADS == BM * BK && B_PASSES * 4 * THREADS == BK * BN, "whole passes");
    static_assert(BK == 8 || BK == 16, "the swizzle and the alternating registers");
    __shared__ __align__(16) float a_tiles[2][BK * BM];  // transposed and swizzled: [k][row]
    __shared__ __align__(16) float b_tiles[2][BK * BN];  // [k][column]
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int tiles_n = (n + BN - 1) / BN;
    const int row0 = blockIdx.x / tiles_n * BM, col0 = blockIdx.x % tiles_n * BN;
    // Lanes that differ only in bit 0 read the same words of a; lanes that differ only in bit 1 read the same words of
    // b. The float4 load of a half-warp then takes one pass over the banks instead of two (lane order of S. Gray's
    // maxas).
    const int y = warp / WARPS_N * LANES_M * TM + (lane / 2 % LANES_M) * 4;
    const int x = warp % WARPS_N * LANES_N * TN + (lane % 2 + lane / 16 * 2) * 4;
    // If the row length is a multiple of 4, four neighbours are either all inside or all outside, and they are aligned.
    const bool k_aligned = k % 4 == 0, n_aligned = n % 4 == 0;

    // This thread fetches float4 number tid, tid + THREADS, ... of each tile; they are numbered row by row.
    const int a_row = tid / (BK / 4), a_k = tid % (BK / 4) * 4;
    const float* a_from = a + (size_t)(row0 + a_row) * k + a_k;
    const int a_rows = m - row0 - a_row;
    const int b_k = tid / (BN / 4), b_col = tid % (BN / 4) * 4;
    const float* b_from = b + (size_t)b_k * n + col0 + b_col;
    const int b_cols = n - col0 - b_col;
    float4 a_next[A_PASSES], b_next[B_PASSES];
    const auto fetch = [&](int k_left) {  // k_left: elements of k that are not fetched yet
        const int a_left = k_left - a_k;
        if (k_aligned) {
#pragma unroll
            for (int p = 0; p < A_PASSES; ++p)
                a_next[p] = load4(a_from + (size_t)(p * A_STEP) * k, p * A_STEP < a_rows && a_left > 0);
        } else {
#pragma unroll
            for (int p = 0; p < A_PASSES; ++p)
                a_next[p] = load_upto4(a_from + (size_t)(p * A_STEP) * k, p * A_STEP < a_rows ? a_left : 0);
        }
        a_from += BK;
        const int b_left = k_left - b_k;
        if (n_aligned) {
#pragma unroll
            for (int p = 0; p < B_PASSES; ++p)
                b_next[p] = load4(b_from + (size_t)(p * B_STEP) * n, p * B_STEP < b_left && b_cols > 0);
        } else {
#pragma unroll
            for (int p = 0; p < B_PASSES; ++p)
                b_next[p] = load_upto4(b_from + (size_t)(p * B_STEP) * n, p * B_STEP < b_left ? b_cols : 0);
        }
        b_from += (size_t)BK * n;
    };
    const auto stage = [&](int buffer) {
#pragma unroll
        for (int p = 0; p < A_PASSES; ++p)
            store_transposed<BK>(a_tiles[buffer], BM, a_k, a_row + p * A_STEP, a_next[p]);
#pragma unroll
        for (int p = 0; p < B_PASSES; ++p) reinterpret_cast<float4*>(b_tiles[buffer])[tid + p * THREADS] = b_next[p];
    };

    alignas(16) float a_part[TM], b_part[TN];
    const auto read = [&](int buffer, int i) {
#pragma unroll
        for (int r = 0; r < TM; r += 4)
            *reinterpret_cast<float4*>(&a_part[r]) =
                *reinterpret_cast<const float4*>(&a_tiles[buffer][i * BM + swizzle<BK>(i, y) + r * LANES_M]);
#pragma unroll
        for (int c = 0; c < TN; c += 4)
            *reinterpret_cast<float4*>(&b_part[c]) =
                *reinterpret_cast<const float4*>(&b_tiles[buffer][i * BN + x + c * LANES_N]);
    };

    alignas(16) float sum[TM][TN] = {};
    fetch(k);
    stage(0);
    __syncthreads();
    int buffer = 0;
#pragma unroll 1
    for (int base = 0; base < k; base += BK) {
        const bool more = base + BK < k;
        if (more) fetch(k - base - BK);
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            read(buffer, i);
#pragma unroll
            for (int r = 0; r < TM; ++r)
#pragma unroll
                for (int c = 0; c < TN; ++c) sum[r][c] += a_part[r] * b_part[c];
        }
        // The other buffer was last read before the previous barrier, so one barrier per tile is enough.
        buffer ^= 1;
        if (more) stage(buffer);
        __syncthreads();
    }

#pragma unroll
    for (int r = 0; r < TM; ++r) {
        const int row = row0 + y + r / 4 * 4 * LANES_M + r % 4;
        if (row >= m) continue;
#pragma unroll
        for (int c = 0; c < TN; c += 4) {
            const int col = col0 + x + c * LANES_N;
            float* p = out + (size_t)row * n + col;
            store_upto4(p, &sum[r][c], col, n, n_aligned);
        }
    }
}
