// /// opbench
// title     = "ping-pong: each warpgroup has its own tiles; one warpgroup stores while the other one multiplies"
// builds_on = "wgmma"
// mechanism = [
//     "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core", "warp_specialised",
//     "persistent", "bank_conflict_free",
// ]
// product   = "bf16"
// tile      = { m = "BM", n = "BN" }
// supports  = { dtype = ["bf16"], epilogue = ["none", "mask", "gelu_tanh"] }
// requires  = ["n % 8 == 0 and k % 8 == 0"]
// define.STAGES = "(196608 if epilogue == 'none' else 163840) // ((BM + BN) * 128)"
// define.GROUP  = "8"
// define.EPILOGUE = "'plain' if epilogue == 'none' else epilogue"
// define.OTHER    = "epilogue != 'none'"
// compute_capability = "9.0a"
// tune      = { BM = [128, 64], BN = [128, 256, 64] }
// where     = ["BM * BN <= 16384", "BM == 128 or BN > 64"]
//
// [tensor_maps]
// map_dout   = { tensor = "dout", box = [64, "BM"] }
// map_weight = { tensor = "weight", box = [64, 64] }
// map_out    = { tensor = "out", box = [64, 16] }
// map_a      = { tensor = "a", box = [64, 16] }
// map_dx     = { tensor = "dx", box = [64, 16] }
//
// [[launch]]
// kernel = "linear_dgrad_wgmma_pingpong"
// grid   = ["min(sm_count, cdiv(m, BM) * cdiv(k, BN))"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 128 + 16) + (32768 if epilogue == 'none' else 4 * BM * BN + 64) + 16"
// args   = ["map_dout", "map_weight", "map_out?", "map_a?", "map_dx", "m", "n", "k"]
// ///
//
// linear/wgmma_pingpong with b stored by rows, as the weights are, for batches with tiles for all multiprocessors: no
// second kernel adds partial sums. The mask of the previous layer's ReLU, or the slope of GELU, is applied while the
// other warpgroup multiplies; TMA loads the operand of this epilogue (out or a) while the sums are computed. Limit:
// power; with few rows wgmma is faster, because nothing splits n here.

#include <opbench/gradients.cuh>
#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

typedef Ring<STAGES, (BM + BN) * 128, 1, 1> Stages;
typedef Tiles<BM, BN, GROUP> TileScheduler;

// dout [m][n], weight [n][k], other (out or a) and dx [m][k]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    linear_dgrad_wgmma_pingpong(const __grid_constant__ TensorMap map_dout,
                                const __grid_constant__ TensorMap map_weight,
#if OTHER
                                const __grid_constant__ TensorMap map_other,
#endif
                                const __grid_constant__ TensorMap map_dx, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Stages::bytes;
#if OTHER
    typedef OperandSmem<BM / 64, BN> Slabs;
    const unsigned operand_barriers = slabs + Slabs::block_bytes, barriers = operand_barriers + Slabs::barrier_bytes;
    if (threadIdx.x == 0) Slabs::init(operand_barriers);
#else
    const unsigned barriers = slabs + EpilogueSmem<>::block_bytes;
#endif
    Stages ring(memory, barriers);
    PingPong ping_pong(barriers + Stages::barrier_bytes);
    const TileScheduler scheduler(m, k);
    const int steps = (n + 63) / 64;
    if (threadIdx.x == 0) {
        ping_pong.init();
        ring.init();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0)
            scheduler.for_each_tile([&](TilePlace tile) {
                ring.fill(steps, [&](int step, unsigned a, unsigned full) {
                    load(a, &map_dout, full, step * 64, tile.row);
                    for (int part = 0; part < BN; part += 64)
                        load(a + (BM + part) * 128, &map_weight, full, tile.column + part, step * 64);
                });
            });
    } else {
        registers_up<consumer_registers>();
        const int warp = threadIdx.x / 32 % 4;
        float sum[BM / 64][BN / 2];
#if OTHER
        Slabs operand(slabs, operand_barriers);
#else
        EpilogueSmem<> out_slabs(slabs);
#endif
        ping_pong.for_each_tile(scheduler, ring, steps, [&](TilePlace tile) {
#if OTHER
            operand.fetch(&map_other, tile.row + warp * 16, tile.column, m, k);
#endif
            ring.drain(steps, [&](int step, unsigned a) {
                multiply_stage<Format::bf16, true>(sum, a, a + BM * 128, step > 0);
                if (step == steps - 1) ping_pong.end();
            });
#if OTHER
            operand.wait();
#endif
#pragma unroll
            for (int i = 0; i < BM / 64; ++i) {
                const int row = tile.row + i * 64 + warp * 16;
#if OTHER
                operand.store_combined(sum[i], i, &map_dx, row, tile.column, m, k,
                                       [](float x, float y) { return finished<EPILOGUE>(x, y); });
#else
                out_slabs.store_rows(sum[i], &map_dx, row, tile.column, m, k);
#endif
            }
        });
        EpilogueSmem<>::finish();
    }
}
