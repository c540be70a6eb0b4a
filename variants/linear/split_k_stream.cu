// /// opbench
// mechanism = ["coalesced", "vectorised_access", "block_reduction", "warp_shuffle", "sliced_k", "overlapped_launch"]
// supports.epilogue = ["none", "bias", "bias_relu", "bias_gelu_tanh", "bias_hardswish", "bias_hardsigmoid"]
// supports.dtype    = ["f32", "bf16"]
// define.BF16   = "1 if dtype == 'bf16' else 0"
// define.BIAS   = "epilogue != 'none'"
// define.EPILOGUE = "epilogue"
// define.M_TILE = "1 if m == 1 else 2 if m == 2 else 4 if m <= 4 else 8"
// tune      = { ROWS = [4, 1, 2], DEPTH = [2, 1, 4], THREADS = [128, 256, 512] }
// where     = [
//   "(ROWS, DEPTH, THREADS) in ((4, 2, 128), (4, 2, 256), (4, 1, 256), (2, 4, 128), (2, 2, 256), (1, 2, 512))",
// ]
// define.EARLY = 0
//
// [[launch]]
// kernel = "linear_block_rows"
// grid   = ["cdiv(m, 8) * cdiv(n, ROWS)"]
// block  = ["THREADS"]
// programmatic = true
//
// [variant.split_k_stream]
// title     = "one block per ROWS rows of weights, k split over its warps, partial sums added at the end"
// builds_on = "warp_rows_vec4"
//
// [variant.split_k_stream_early]
// title     = "programmatic dependent launch: the next layer loads its first weights before this one has ended"
// builds_on = "split_k_stream"
// define.EARLY = 1
// compute_capability = "9.0"
//
// [[variant.split_k_stream_early.launch]]
// kernel       = "linear_block_rows"
// grid         = ["cdiv(m, 8) * cdiv(n, ROWS)"]
// block        = ["THREADS"]
// programmatic = true
// early        = ["weight", "bias?"]
// ///
//
// All blocks of a layer with 4096 outputs are resident at once, and the threads of a block read ROWS whole rows in a
// few steps. So nearly all weights that a multiprocessor reads are requested at the start, and new blocks start before
// the last blocks have ended. With ROWS = 1, even a layer of 10 outputs occupies 10 * THREADS threads. The sums of the
// warps are added in order, so the result has the same bits every time. Limit: each block reads x again (from L1 or
// L2), ends with a reduction, and starts with no load in flight. With EARLY, blocks start while the previous layer's
// blocks still end one after the other. After "split K" within a block, "sliced K" in CUTLASS's efficient GEMM notes.

#include <opbench/overlap.cuh>
#include <opbench/row_stream.cuh>
using namespace opbench;

typedef Element<BF16> T;
#define VEC (BF16 ? 8 : 4)  // numbers in 16 bytes
#define SUMS (M_TILE * ROWS)
#define WARPS (THREADS / 32)

// x [m, k], weight [n, k], bias [n], out [m, n]; a block computes M_TILE x ROWS outputs.
extern "C" __global__ void __launch_bounds__(THREADS) linear_block_rows(const T* x, const T* __restrict__ weight,
#if BIAS
                                                                        const T* __restrict__ bias,
#endif
                                                                        T* __restrict__ out, int m, int n, int k) {
#if !BIAS
    const T* bias = nullptr;
#endif
    __shared__ float parts[WARPS][SUMS];
    const int tiles_m = (m + 7) / 8;
    const int row0 = blockIdx.x % tiles_m * 8, col0 = blockIdx.x / tiles_m * ROWS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool aligned = k % VEC == 0;
    const T* from[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) from[r] = weight + (size_t)min(col0 + r, n - 1) * k;
    float sum[SUMS] = {};
    let_next_launch_start();
    if (!EARLY) wait_for_launches_before();
    for (int i = threadIdx.x * VEC; i < k; i += THREADS * VEC * DEPTH) {
        uint4 w[DEPTH][ROWS];  // all loads first, so that they are in flight together
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
#pragma unroll
            for (int r = 0; r < ROWS; ++r) w[d][r] = load16(from[r], i + d * THREADS * VEC, k, aligned);
        if (EARLY && i < THREADS * VEC) wait_for_launches_before();  // the previous launch writes x
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) multiply_rows(sum, w[d], x, row0, i + d * THREADS * VEC, m, k, aligned);
    }
    if (EARLY) wait_for_launches_before();  // also for threads that have no k
    add_lanes(sum, lane);
    constexpr int LANES = SUMS < 32 ? 32 / SUMS : 1, LEFT = SUMS < 32 ? 1 : SUMS / 32;
    if (lane % LANES == 0) {
#pragma unroll
        for (int j = 0; j < LEFT; ++j) parts[warp][lane / LANES * LEFT + j] = sum[j];
    }
    __syncthreads();
    const int value = threadIdx.x;
    if (value >= SUMS) return;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) total += parts[w][value];
    store_biased<BIAS, activation_of::EPILOGUE>(total, bias, out, row0 + value / ROWS, col0 + value % ROWS, m, n);
}
