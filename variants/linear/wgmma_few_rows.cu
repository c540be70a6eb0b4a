// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "bank_conflict_free", "split_k", "double_buffer", "tma", "tensor_core",
//     "cluster", "overlapped_launch",
// ]
// supports  = { epilogue = ["none", "bias", "bias_relu", "bias_gelu_tanh", "bias_hardswish", "bias_hardsigmoid"] }
// requires  = ["m <= 128", "n * max(m, k) < 2 ** 31"]
// define.BK     = "64 if PRODUCT == 'bf16' else 32"
// define.BATCH  = "8 if m <= 8 else 16 if m <= 16 else 32 if m <= 32 else 64 if m <= 64 else 128"
// define.ROOM   = "196608 if m > 32 and (TILES == 2 or SPLIT * cdiv(n, 64) <= 132) else 98304"
// define.STAGES = "min(12, ROOM // (128 * (64 * TILES + BATCH)))"
// define.BIAS   = "epilogue != 'none'"
// define.EPILOGUE = "epilogue"
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
// shared       = "STAGES * (128 * (64 * TILES + BATCH) + 16) + 8"
// programmatic = true
// early        = ["weight", "bias?"]
// args         = ["map_weight", "map_x", "bias?", "out", "m", "n", "k"]
//
// [variant.wgmma_few_rows_bf16]
// title     = "few rows: bf16 wgmma with weights as rows, k split over a cluster, programmatic dependent launch"
// builds_on = "mma_bf16_split_k"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["k % 8 == 0"]
//
// [variant.wgmma_few_rows_tf32]
// title     = "few rows: TF32 wgmma with weights as rows, k split over a cluster, programmatic dependent launch"
// builds_on = "mma_tf32_split_k"
// product   = "tf32"
// requires  = ["k % 4 == 0"]
// ///
//
// With few rows, the time of a layer is that of reading its weights: DRAM limits it, and of its ten microseconds the
// start and the end are lost. So the weights are the 64 rows of wgmma and the batch is its columns (8 to 128), without
// padding to a tile. One thread keeps up to twelve stages of copies in flight, 100 KB per block, so that two blocks
// fill a multiprocessor (from 64 rows on 200 KB, and one block fills it). The SPLIT blocks of a cluster divide k. They
// copy each other's share of the sums into their shared memory, as one copy (single words would take microseconds), and
// add them in the order of their ranks, without a second launch and without traffic to DRAM. The launch is
// programmatic: blocks start while the last blocks of the previous layer run, and copy weights and bias, which no layer
// computes, before x is ready. Limit: DRAM, and 4 us of start and end, 6 to 7 from 32 rows on, where bf16 takes 2
// to 9 % longer than cuBLAS on an H200. Ideas: CUTLASS's stream-K; the CUDA Programming Guide, "Programmatic Dependent
// Launch"; DeepGEMM's kernels for few rows.

#include <opbench/few_rows.cuh>
using namespace opbench;

typedef FewRows<Format::PRODUCT, BATCH, TILES, SPLIT, STAGES> Stream;
typedef Stream::T T;

// out [m][n] = x [m][k] . weight [n][k] + bias [n]; blocks of a cluster have the same weights' rows
extern "C" __global__ void __launch_bounds__(160)
    linear_wgmma_few_rows(const __grid_constant__ TensorMap map_weight, const __grid_constant__ TensorMap map_x,
#if BIAS
                          const T* __restrict__ bias,
#endif
                          T* __restrict__ out, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const int output_index = Stream::output_index();
#if BIAS
    const float shift = output_index < n ? widen(bias[output_index]) : 0.0f;  // on its way with the weights
#else
    constexpr float shift = 0.0f;
#endif
    Stream::multiply(
        shared, &map_weight, &map_x, m, n, k, [](int, int) { return 0.0f; },
        [&](float total, float, int column) {
            total += shift;
            out[(size_t)column * n + output_index] =
                Stream::to_operand(apply_activation<activation_of::EPILOGUE>(total));
        });
}
