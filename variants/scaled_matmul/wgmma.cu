// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "bank_conflict_free", "double_buffer", "tma", "tensor_core",
//     "warp_specialised", "persistent", "cluster",
// ]
// product   = "fp8"
// tile      = { m = 128, n = "BN", k = 128 }
// requires  = ["k % 16 == 0 and n % 8 == 0"]
// compute_capability = "9.0a"
//
// [define]
// A_E5M2   = "a_dtype == 'e5m2'"
// B_E5M2   = "b_dtype == 'e5m2'"
// BY_ROW   = "scaling == 'row'"
// BY_BLOCK = "scaling == 'block'"
// STAGES   = "196608 // ((128 + BN) * 128)"
//
// [tensor_maps]
// map_a   = { tensor = "a", box = [128, 128] }
// map_b   = { tensor = "b", box = [128, "BN // CLUSTER"] }
// map_out = { tensor = "out", box = [64, 16] }
//
// [[launch]]
// kernel  = "scaled_matmul_wgmma"
// grid    = ["min(sm_count // CLUSTER, cdiv(m, 128 * CLUSTER) * cdiv(n, BN)) * CLUSTER"]
// block   = [384]
// cluster = ["CLUSTER"]
// shared  = "STAGES * ((128 + BN) * 128 + 16) + 32768"
// args    = ["map_a", "map_b", "map_out", "scale_a", "scale_b", "m", "n", "k"]
//
// [variant.wgmma]
// title     = "8-bit wgmma with a TMA pipeline in persistent blocks; a cluster may share loads of b (multicast)"
// builds_on = "mma"
// supports  = { scaling = ["tensor", "row"], a_dtype = ["e4m3", "e5m2"], b_dtype = ["e4m3", "e5m2"] }
// tune      = { BN = [256, 128], GROUP = [8, 16], CLUSTER = [1, 2] }
// where     = ["(BN, GROUP, CLUSTER) in ((256, 8, 1), (256, 16, 1), (256, 8, 2), (128, 8, 1))"]
//
// [variant.wgmma_promoted]
// title     = "wgmma with a new sum every 128 steps of k, scaled and added in float32 (two-level accumulation)"
// builds_on = "wgmma"
// supports  = { scaling = ["block", "tensor", "row"], a_dtype = ["e4m3", "e5m2"], b_dtype = ["e4m3", "e5m2"] }
// define    = { PROMOTED = "1" }
// tune      = { BN = [128], GROUP = [8], CLUSTER = [1, 2], TURNS = [4, 8, 1] }
// where     = ["TURNS == 4 or CLUSTER == 1"]
// ///
//
// One thread copies 128 bytes of k of both operands per stage. Two warpgroups multiply 64 rows each, 32 elements of k
// per instruction, twice as many as with bf16 in the same time. Scales are applied to the sums before they are stored,
// through shared memory and TMA. A cluster of two blocks may share the copies of b, which is faster only if L2 is the
// limit.
//
// Hopper's tensor cores keep only about 14 bits when they add products of 8-bit floats. wgmma_promoted adds the sums of
// every 128 elements of k in float32 registers: its error is that of 128 additions, whatever k is, and scales of blocks
// need this anyway. One set of sums is added while the next one is computed. Three sets must fit in the registers, so
// tiles have 128 columns. Scales are loaded when the products are issued, and used after them. Limit: the stores at the
// end of a tile; for wgmma_promoted the additions. After DeepGEMM (DeepSeek, 2025) and CUTLASS's persistent schedules.

#include <opbench/byte_wgmma.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

#ifndef PROMOTED
#define PROMOTED 0
#endif

constexpr Bytes types = float_bytes(A_E5M2, B_E5M2);
typedef Ring<STAGES, (128 + BN) * 128, CLUSTER> Stages;
typedef Tiles<128, BN, GROUP, CLUSTER> TileScheduler;

// a [m][k], b [n][k], out [m][n]; scales: see operator.py
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    scaled_matmul_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                        const __grid_constant__ TensorMap map_out, const float* __restrict__ scale_a,
                        const float* __restrict__ scale_b, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Stages::bytes;
    Stages ring(memory, slabs + EpilogueSmem<>::block_bytes);
    const TileScheduler scheduler(m, n);
    const int steps = (k + 127) / 128;
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0) fill_tiles<BN, CLUSTER>(ring, scheduler, steps, &map_a, &map_b);
    } else {
        registers_up<consumer_registers>();
        const int first = (threadIdx.x / 128 - 1) * 64, lane = threadIdx.x % 32;
        const int line = first + threadIdx.x / 32 % 4 * 16;  // the warp's first row in its tile
        float sum[PROMOTED + 1][1][BN / 2];
        EpilogueSmem<> out_slabs(slabs);
        scheduler.for_each_tile([&](TilePlace tile) {
            const int row = tile.row + line;
            const int top = min(row + lane / 4, m - 1), bottom = min(row + lane / 4 + 8, m - 1);
            const auto multiply = [&](auto& to, unsigned a, int add) {
                multiply_bytes<types>(to, a + first * 128, a + 128 * 128, add);
            };
#if PROMOTED
            float total[BN / 2] = {}, of_a[2][2], of_b[2];
            drain_promoted_alternately<TURNS>(
                ring, steps,
                [&](auto set, int step, unsigned a) {
                    if (BY_BLOCK) {  // loaded while the products run
                        of_b[set.value] = scale_b[tile.column / 128 * steps + step];
                        of_a[set.value][0] = scale_a[(size_t)step * m + top];
                        of_a[set.value][1] = scale_a[(size_t)step * m + bottom];
                    }
                    multiply(sum[set.value], a, 0);
                },
                [&](auto set, int) {
                    const float above = BY_BLOCK ? of_a[set.value][0] * of_b[set.value] : 1.0f;
                    const float below = BY_BLOCK ? of_a[set.value][1] * of_b[set.value] : 1.0f;
#pragma unroll
                    for (int i = 0; i < BN / 2; ++i) total[i] += sum[set.value][0][i] * (i / 2 % 2 ? below : above);
                });
            auto& result = total;
#else
            ring.drain(steps, [&](int step, unsigned a) { multiply(sum[0], a, step > 0); });
            auto& result = sum[0][0];
#endif
            if (!BY_BLOCK) {
                const float above = scale_a[BY_ROW ? top : 0], below = scale_a[BY_ROW ? bottom : 0];
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) {
                    const int at = BY_ROW ? min(tile.column + i / 4 * 8 + lane % 4 * 2 + i % 2, n - 1) : 0;
                    result[i] *= (i / 2 % 2 ? below : above) * scale_b[at];
                }
            }
            out_slabs.store_rows(result, &map_out, row, tile.column, m, n);
        });
        out_slabs.finish();
    }
    if (CLUSTER > 1) cluster_sync();  // a block must not exit while others may still write to its shared memory
}
