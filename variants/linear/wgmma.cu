// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core", "warp_specialised",
//     "persistent", "overlapped_launch",
// ]
// tile      = { m = "BM", n = "BN", k = "BK" }
// supports  = { epilogue = ["none", "bias", "bias_relu", "bias_gelu_tanh", "bias_hardswish", "bias_hardsigmoid"] }
// define.BK     = "64 if PRODUCT == 'bf16' else 32"
// define.STAGES = "196608 // ((BM + BN) * 128)"
// define.GROUP  = "8"
// define.BIAS    = "epilogue != 'none'"
// define.EPILOGUE = "epilogue"
// compute_capability = "9.0a"
// tune      = { BM = [128, 256], BN = [128, 256, 192, 64] }
// where     = ["BM == 128 or BN == 128"]
//
// [tensor_maps]
// map_x      = { tensor = "x", type = "PRODUCT", box = ["BK", "BM"] }
// map_weight = { tensor = "weight", type = "PRODUCT", box = ["BK", "BN"] }
//
// [variant.wgmma_bf16]
// title     = "bf16 wgmma and TMA, warp-specialised, in persistent blocks; results are stored by TMA"
// builds_on = "mma_bf16"
// mechanism = ["bank_conflict_free"]
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["k % 8 == 0 and n % 8 == 0"]
// tensor_maps.map_out = { tensor = "out", box = [64, 16] }
//
// [[variant.wgmma_bf16.launch]]
// kernel = "linear_wgmma"
// grid   = ["min(sm_count, cdiv(m, BM) * cdiv(n, BN))"]
// block  = [384]
// programmatic = true
// early  = ["weight", "bias?"]
// shared = "STAGES * ((BM + BN) * 128 + 16) + 32768"
// args   = ["map_x", "map_weight", "bias?", "map_out", "m", "n", "k"]
//
// [variant.wgmma_tf32]
// title     = "TF32 wgmma and TMA, warp-specialised, in persistent blocks"
// builds_on = "mma_tf32"
// product   = "tf32"
// requires  = ["k % 4 == 0 and n % 2 == 0"]
//
// [[variant.wgmma_tf32.launch]]
// kernel = "linear_wgmma"
// grid   = ["min(sm_count, cdiv(m, BM) * cdiv(n, BN))"]
// block  = [384]
// programmatic = true
// early  = ["weight", "bias?"]
// shared = "STAGES * ((BM + BN) * 128 + 16)"
// args   = ["map_x", "map_weight", "bias?", "out", "m", "n", "k"]
// ///
//
// This is matmul/wgmma_persistent, whose comment explains each step, with b by columns, as weights are stored. Bias and
// ReLU or GELU are applied to the sums in registers, where a thread has 2 of 8 neighbouring columns, before TMA stores
// the rounded results. TMA rounds floats to TF32, to nearest even, while it copies them. Blocks start while the last
// blocks of the previous launch still run, and copy weights, which no launch writes, before x is ready. Limit: with
// many rows power; with few rows there are too few tiles for all multiprocessors, as nothing splits k here, and reading
// the weights from DRAM.

#include <opbench/consumer_tiles.cuh>
#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

typedef Ring<STAGES, (BM + BN) * 128> Stages;
typedef Tiles<BM, BN, GROUP> TileScheduler;
typedef Stored<Format::PRODUCT>::T T;

// x [m][k], weight [n][k], bias [n], out [m][n]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    linear_wgmma(const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_weight,
#if BIAS
                 const T* __restrict__ bias,
#endif
#if BK == 64
                 const __grid_constant__ TensorMap map_out,
#else
                 T* __restrict__ out,
#endif
                 int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Stages::bytes;
    Stages ring(memory, slabs + (BK == 64 ? EpilogueSmem<>::block_bytes : 0));
    const TileScheduler scheduler(m, n);
    const int steps = (k + BK - 1) / BK;
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0)
            ring.fill_tiles(
                scheduler, steps,
                [&](TilePlace tile, int step, unsigned stage, unsigned full) {
                    load(stage + BM * 128, &map_weight, full, step * BK, tile.column);
                },
                [&](TilePlace tile, int step, unsigned stage, unsigned full) {
                    load(stage, &map_x, full, step * BK, tile.row);
                });
    } else {
        registers_up<consumer_registers>();
        EpilogueSmem<> out_slabs(slabs);
        multiply_tiles<Format::PRODUCT, false>(ring, scheduler, steps, [&](auto& sum, int row, int column) {
#if BIAS
            add_bias<activation_of::EPILOGUE>(sum, bias, column, n);
#endif
#if BK == 64
            out_slabs.store_rows(sum, &map_out, row, column, m, n);
#else
                store_pairs(sum, out, row, column, m, n);
#endif
        });
        if (BK == 64) out_slabs.finish();
    }
}
