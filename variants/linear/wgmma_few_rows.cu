// /// opbench
// supports  = { epilogue = ["bias", "bias_relu"] }
// requires  = ["m <= 128", "n * max(m, k) < 2 ** 31"]
// define.BK     = "64 if PRODUCT == 'bf16' else 32"
// define.BATCH  = "8 if m <= 8 else 16 if m <= 16 else 32 if m <= 32 else 64 if m <= 64 else 128"
// define.STAGES = "min(12, 98304 // (128 * (64 * TILES + BATCH)))"
// define.RELU   = "epilogue == 'bias_relu'"
// compute_capability = "9.0a"
// tune      = { TILES = [1, 2], SPLIT = [2, 4, 1] }
//
// [tensor_maps]
// map_weight = { tensor = "weight", type = "PRODUCT", box = ["BK", "64 * TILES"] }
// map_x      = { tensor = "x", type = "PRODUCT", box = ["BK", "BATCH"] }
//
// [[launch]]
// kernel       = "linear_wgmma_few_rows"
// grid         = ["SPLIT * cdiv(n, 64 * TILES)"]
// block        = [160]
// cluster      = ["SPLIT"]
// shared       = "STAGES * (128 * (64 * TILES + BATCH) + 16)"
// programmatic = true
// early        = ["weight"]
// args         = ["map_weight", "map_x", "bias", "out", "m", "n", "k"]
//
// [rung.wgmma_few_rows_bf16]
// title     = "few rows: weights are wgmma's rows, k split over a cluster, the next layer's weights come while this one ends"
// builds_on = "mma_bf16_split_k"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["k % 8 == 0"]
//
// [rung.wgmma_few_rows_tf32]
// title     = "few rows in TF32: weights are wgmma's rows, k split over a cluster, weights fetched before x is awaited"
// builds_on = "mma_tf32_split_k"
// product   = "tf32"
// requires  = ["k % 4 == 0"]
// ///
//
// A layer of few rows is a stream of weights: DRAM limits it, and what is lost is the start and the end of ten
// microseconds. So weights are the instruction's 64 rows and the batch its columns (8 to 128), of which nothing is padded
// to a tile; one thread keeps up to twelve stages of copies under way, 100 KB a block, so that two blocks fill a
// multiprocessor; the SPLIT blocks of a cluster divide k and add their sums through each other's shared memory, in the
// order of their ranks, without a second launch or a word in DRAM. And the launch is programmatic: its blocks start as
// those of the layer before leave, and have their weights, which no layer computes, on the way before x is ready.
// Limit: DRAM, at 84 % of its rate, and ramp and tail. Ideas: CUTLASS's stream-K; the CUDA Programming Guide,
// "Programmatic Dependent Launch"; DeepGEMM's kernels for few rows.

#include <opbench/barrier.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
#include <opbench/wgmma.cuh>
using namespace opbench;

#if BK == 64
typedef unsigned short T;  // bf16
__device__ __forceinline__ T narrowed(float x) { return (T)pack_bf16(x, 0.0f); }
#else
typedef float T;
__device__ __forceinline__ T narrowed(float x) { return x; }
#endif
constexpr int rows = 64 * TILES, weight_bytes = rows * 128, stage_bytes = weight_bytes + BATCH * 128;
constexpr int share = BATCH * rows / SPLIT;  // of the tile's sums, that a block of the cluster adds up
static_assert(BATCH * rows * 4 <= STAGES * stage_bytes, "the sums meet where the stages were");

// out [m][n] = x [m][k] . weight [n][k] + bias [n]; blocks of a cluster have the same `rows` weights
extern "C" __global__ void __launch_bounds__(160)
    linear_wgmma_few_rows(const __grid_constant__ TensorMap map_weight, const __grid_constant__ TensorMap map_x,
                          const T* __restrict__ bias, T* __restrict__ out, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), full = memory + STAGES * stage_bytes, empty = full + 8 * STAGES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = SPLIT > 1 ? (int)cluster_rank() : 0;
    const int row0 = (int)blockIdx.x / SPLIT * rows, all = (k + BK - 1) / BK;
    const int begin = all * rank / SPLIT, steps = all * (rank + 1) / SPLIT - begin;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage)
            barrier_init(full + 8 * stage, 1), barrier_init(empty + 8 * stage, 1);
        barrier_init_fence();
    }
    __syncthreads();
    float sum[TILES][BATCH / 2] = {};
    if (warp == 4) {
        if (lane == 0) {
            const auto fetch_weights = [&](int step) {
                const unsigned stage = step % STAGES;
                arrive_expect(full + 8 * stage, stage_bytes);
                load(memory + stage * stage_bytes, &map_weight, full + 8 * stage, (begin + step) * BK, row0);
            };
            const auto fetch_x = [&](int step) {
                const unsigned stage = step % STAGES;
                load(memory + stage * stage_bytes + weight_bytes, &map_x, full + 8 * stage, (begin + step) * BK, 0);
            };
            const int ahead = min(steps, STAGES);
            for (int step = 0; step < ahead; ++step) fetch_weights(step);
            wait_for_launches_before();
            let_next_launch_start();
            for (int step = 0; step < ahead; ++step) fetch_x(step);
            for (int step = ahead; step < steps; ++step) {
                wait_for(empty + 8 * (step % STAGES), (step / STAGES - 1) % 2);
                fetch_weights(step);
                fetch_x(step);
            }
        }
    } else {
        for (int step = 0; step < steps; ++step) {
            const unsigned stage = memory + step % STAGES * stage_bytes;
            wait_for(full + 8 * (step % STAGES), step / STAGES % 2);
            wgmma_fence();
            multiply_stage<PRODUCT>(sum, stage, stage + weight_bytes, step > 0);
            wgmma_commit();
            wgmma_wait<1>();
            if (threadIdx.x == 0 && step > 0) arrive(empty + 8 * ((step - 1) % STAGES));
        }
        wgmma_wait<0>();
    }
    __syncthreads();                                       // every stage has been read
    float* const sums = reinterpret_cast<float*>(shared);  // [BATCH][rows]
    if (warp < 4) {
#pragma unroll
        for (int i = 0; i < TILES * BATCH / 2; ++i) {
            const int at = i % (BATCH / 2), row = i / (BATCH / 2) * 64 + warp * 16 + lane / 4 + at / 2 % 2 * 8;
            sums[(at / 4 * 8 + lane % 4 * 2 + at % 2) * rows + row] = sum[i / (BATCH / 2)][at];
        }
    }
    sync_blocks<SPLIT>();
    for (int i = rank * share + threadIdx.x; i < (rank + 1) * share; i += 160) {
        float total = 0.0f;
#pragma unroll
        for (int from = 0; from < SPLIT; ++from)
            total += SPLIT > 1 ? load_there(address_in(memory + i * 4, from)) : sums[i];
        const int column = i / rows, row = row0 + i % rows;
        if (column >= m || row >= n) continue;
        total += widen(bias[row]);
        out[(size_t)column * n + row] = narrowed(RELU ? fmaxf(total, 0.0f) : total);
    }
    sync_blocks<SPLIT>();  // others may still read this block's sums
}
