// /// opbench
// title     = "ping-pong: each warpgroup has its own tiles; one warpgroup stores while the other one multiplies"
// builds_on = "wgmma_bf16"
// mechanism = [
//     "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core", "warp_specialised",
//     "persistent", "bank_conflict_free", "overlapped_launch",
// ]
// product   = "bf16"
// tile      = { m = "BM", n = "BN", k = 64 }
// supports.dtype    = ["bf16"]
// supports.epilogue = ["none", "bias", "bias_relu", "bias_gelu_tanh", "bias_hardswish", "bias_hardsigmoid"]
// requires  = ["k % 8 == 0 and n % 8 == 0"]
// define.STAGES  = "196608 // ((BM + BN) * 128)"
// define.GROUP   = "8"
// define.BIAS    = "epilogue != 'none'"
// define.EPILOGUE = "epilogue"
// compute_capability = "9.0a"
// tune      = { BM = [128, 64], BN = [128, 256, 192, 64] }
// where     = ["BM * BN <= 16384", "BM == 128 or BN > 64"]
//
// [tensor_maps]
// map_x      = { tensor = "x", box = [64, "BM"] }
// map_weight = { tensor = "weight", box = [64, "BN"] }
// map_out    = { tensor = "out", box = [64, 16] }
//
// [[launch]]
// kernel = "linear_wgmma_pingpong"
// grid   = ["min(sm_count, cdiv(m, BM) * cdiv(n, BN))"]
// block  = [384]
// programmatic = true
// early  = ["weight", "bias?"]
// shared = "STAGES * ((BM + BN) * 128 + 16) + 32768 + 16"
// args   = ["map_x", "map_weight", "bias?", "map_out", "m", "n", "k"]
// ///
//
// In wgmma_bf16 both warpgroups share a tile, so the tensor cores wait while it is stored; the shorter the depth, the
// larger is this part of the time. Here a tile belongs to one warpgroup, and the warpgroups alternate: while one
// multiplies, the other applies bias and GELU to its sums and stores them. A tile is only half as large, because its
// sums must fit in the registers of one warpgroup, so L2 delivers more bytes per product: with k = 3072, wgmma_bf16 is
// as fast or faster. As in wgmma_bf16, blocks start before the previous launch has ended. (A cluster of two blocks that
// share the copies of the weights gained nothing on an H100.) Limit: power. Idea: CUTLASS's ping-pong schedule.

#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

typedef Ring<STAGES, (BM + BN) * 128, 1, 1> Stages;
typedef Tiles<BM, BN, GROUP> TileScheduler;

// x [m][k], weight [n][k], bias [n], out [m][n]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    linear_wgmma_pingpong(const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_weight,
#if BIAS
                          const unsigned short* __restrict__ bias,
#endif
                          const __grid_constant__ TensorMap map_out, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Stages::bytes;
    const unsigned barriers = slabs + EpilogueSmem<>::block_bytes;
    Stages ring(memory, barriers);
    PingPong ping_pong(barriers + Stages::barrier_bytes);
    const TileScheduler scheduler(m, n);
    const int steps = (k + 63) / 64;
    if (threadIdx.x == 0) {
        ping_pong.init();
        ring.init();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0)
            ring.fill_tiles(
                scheduler, steps,
                [&](TilePlace tile, int step, unsigned stage, unsigned full) {
                    load(stage + BM * 128, &map_weight, full, step * 64, tile.column);
                },
                [&](TilePlace tile, int step, unsigned stage, unsigned full) {
                    load(stage, &map_x, full, step * 64, tile.row);
                });
    } else {
        registers_up<consumer_registers>();
        const int warp = threadIdx.x / 32 % 4;
        float sum[BM / 64][BN / 2];
        EpilogueSmem<> out_slabs(slabs);
        ping_pong.for_each_tile(scheduler, ring, steps, [&](TilePlace tile) {
            ring.drain(steps, [&](int step, unsigned a) {
                multiply_stage<Format::bf16>(sum, a, a + BM * 128, step > 0);
                if (step == steps - 1) ping_pong.end();
            });
#pragma unroll
            for (int i = 0; i < BM / 64; ++i) {
#if BIAS
                add_bias<activation_of::EPILOGUE>(sum[i], bias, tile.column, n);
#endif
                out_slabs.store_rows(sum[i], &map_out, tile.row + i * 64 + warp * 16, tile.column, m, n);
            }
        });
        out_slabs.finish();
    }
}
