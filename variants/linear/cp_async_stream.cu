// /// opbench
// title     = "persistent blocks stream weights through a cp.async pipeline: no gap between rows"
// builds_on = "split_k_stream"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "warp_shuffle", "double_buffer", "async_copy",
//     "persistent",
// ]
// supports.epilogue = ["none", "bias", "bias_relu", "bias_gelu_tanh", "bias_hardswish", "bias_hardsigmoid"]
// supports.dtype    = ["f32", "bf16"]
// define.BF16   = "1 if dtype == 'bf16' else 0"
// define.BIAS   = "epilogue != 'none'"
// define.EPILOGUE = "epilogue"
// define.M_TILE = "1 if m == 1 else 2 if m == 2 else 4 if m <= 4 else 8"
// tune      = { ROWS = [4, 2], THREADS = [128, 256], STAGES = [8, 4], BLOCKS = [3, 2, 4] }
// compute_capability = "8.0"
// where     = [
//   "(ROWS, THREADS, STAGES) in ((4, 128, 8), (4, 256, 4), (2, 256, 8), (2, 128, 8))",
//   "BLOCKS == (4 if ROWS * THREADS == 256 else 3) or (BLOCKS == 2 and ROWS * THREADS == 1024)",
// ]
//
// [[launch]]
// kernel = "linear_stream"
// grid   = ["min(sm_count * BLOCKS, cdiv(m, 8) * cdiv(n, ROWS))"]
// block  = ["THREADS"]
// shared = "STAGES * ROWS * THREADS * 16"
// ///
//
// STAGES - 1 steps of weights are in flight at any time, with STAGES = 8 and ROWS = 4 up to 56 KB per block, and they
// need no registers. The cyclic buffer continues from one group of rows to the next, so the reduction and the epilogue
// of a group run while the weights of the next group are loaded. Each thread copies the same 16 bytes that it reads
// later, so the buffer needs no barrier. The sums have the same order as in the previous variant. Limit: DRAM; with 8
// rows of x also the multiply-adds and the loads of x from L1. After the multistage pipelines of CUTLASS (Ampere).

#include <opbench/row_stream.cuh>
using namespace opbench;

typedef Element<BF16> T;
#define VEC (BF16 ? 8 : 4)  // numbers in 16 bytes
#define SUMS (M_TILE * ROWS)
#define WARPS (THREADS / 32)

__device__ __forceinline__ void copy16_async(uint4* to, const T* from, bool inside) {
    const unsigned offset = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(offset), "l"(from), "r"(inside ? 16 : 0)
                 : "memory");
}

extern __shared__ __align__(16) uint4 ring[];  // [STAGES][ROWS][THREADS]

// x [m, k], weight [n, k], bias [n], out [m, n]; groups of M_TILE x ROWS outputs, gridDim.x apart, for each block.
extern "C" __global__ void __launch_bounds__(THREADS)
    linear_stream(const T* __restrict__ x, const T* __restrict__ weight,
#if BIAS
                  const T* __restrict__ bias,
#endif
                  T* __restrict__ out, int m, int n, int k) {
#if !BIAS
    const T* bias = nullptr;
#endif
    __shared__ float parts[2][WARPS][SUMS];
    const int tiles_m = (m + 7) / 8, groups = tiles_m * ((n + ROWS - 1) / ROWS);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, thread_offset = threadIdx.x * VEC;
    const bool aligned = k % VEC == 0;
    // fetch() runs STAGES - 1 steps ahead of the multiplication, also from one group to the next.
    int fetch_group = blockIdx.x, fetch_i = thread_offset, stage = 0;
    const auto fetch = [&](int to) {
        if (fetch_group < groups) {
            const int col0 = fetch_group / tiles_m * ROWS;
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const T* row = weight + (size_t)min(col0 + r, n - 1) * k;
                uint4* slot = ring + (to * ROWS + r) * THREADS + threadIdx.x;
                if (aligned)
                    copy16_async(slot, fetch_i < k ? row + fetch_i : row, fetch_i < k);
                else
                    *slot = load16(row, fetch_i, k, false);
            }
            fetch_i += THREADS * VEC;
            if (fetch_i - thread_offset >= k) fetch_i = thread_offset, fetch_group += gridDim.x;
        }
        // also if the group is empty, so that wait_group counts correctly
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) fetch(s);
    int buffer = 0;
    for (int group = blockIdx.x; group < groups; group += gridDim.x, buffer ^= 1) {
        const int row0 = group % tiles_m * 8, col0 = group / tiles_m * ROWS;
        float sum[SUMS] = {};
        for (int i = thread_offset; i - thread_offset < k; i += THREADS * VEC) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            uint4 w[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) w[r] = ring[(stage * ROWS + r) * THREADS + threadIdx.x];
            fetch(stage == 0 ? STAGES - 1 : stage - 1);  // into the buffer that was read in the previous step
            stage = stage == STAGES - 1 ? 0 : stage + 1;
            multiply_rows(sum, w, x, row0, i, m, k, aligned);
        }
        add_lanes(sum, lane);
        constexpr int LANES = SUMS < 32 ? 32 / SUMS : 1, LEFT = SUMS < 32 ? 1 : SUMS / 32;
        if (lane % LANES == 0) {
#pragma unroll
            for (int j = 0; j < LEFT; ++j) parts[buffer][warp][lane / LANES * LEFT + j] = sum[j];
        }
        __syncthreads();  // `parts` has two halves: the half read below is next written after another barrier
        const int value = threadIdx.x;
        if (value < SUMS) {
            float total = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) total += parts[buffer][w][value];
            store_biased<BIAS, activation_of::EPILOGUE>(total, bias, out, row0 + value / ROWS, col0 + value % ROWS, m,
                                                        n);
        }
    }
}
