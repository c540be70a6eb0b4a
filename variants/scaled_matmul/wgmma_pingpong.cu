// /// opbench
// title     = "ping-pong: each warpgroup has its own tiles; one warpgroup stores while the other one multiplies"
// builds_on = "wgmma"
// mechanism = [
//     "shared_memory_tile", "register_tile", "bank_conflict_free", "double_buffer", "tma", "tensor_core",
//     "warp_specialised", "persistent", "cluster",
// ]
// product   = "fp8"
// tile      = { m = 128, n = 128, k = 128 }
// supports  = { scaling = ["tensor", "row"], a_dtype = ["e4m3", "e5m2"], b_dtype = ["e4m3", "e5m2"] }
// requires  = ["k % 16 == 0 and n % 8 == 0"]
// tune      = { CLUSTER = [1, 2] }
// compute_capability = "9.0a"
//
// [define]
// A_E5M2 = "a_dtype == 'e5m2'"
// B_E5M2 = "b_dtype == 'e5m2'"
// BY_ROW = "scaling == 'row'"
// GROUP  = "8"
// STAGES = "6"
//
// [tensor_maps]
// map_a   = { tensor = "a", box = [128, 128] }
// map_b   = { tensor = "b", box = [128, "128 // CLUSTER"] }
// map_out = { tensor = "out", box = [64, 16] }
//
// [[launch]]
// kernel  = "scaled_matmul_pingpong"
// grid    = ["min(sm_count // CLUSTER, cdiv(m, 128 * CLUSTER) * cdiv(n, 128)) * CLUSTER"]
// block   = [384]
// cluster = ["CLUSTER"]
// shared  = "STAGES * (256 * 128 + 16) + 32768 + 16"
// args    = ["map_a", "map_b", "map_out", "scale_a", "scale_b", "m", "n", "k"]
// ///
//
// In wgmma both warpgroups share a tile, and the tensor cores wait while it is scaled and stored. 8-bit products take
// half the time of 16-bit products, so this part of the time is twice as large. Here a tile belongs to one warpgroup,
// and the other one multiplies meanwhile. A tile has half the columns, because its sums must fit in the registers of
// one warpgroup, so L2 delivers a third more bytes per product. Limit: power. Idea: CUTLASS's ping-pong schedule.

#include <opbench/byte_wgmma.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

constexpr Bytes types = float_bytes(A_E5M2, B_E5M2);
typedef Ring<STAGES, 256 * 128, CLUSTER, 1> Stages;
typedef Tiles<128, 128, GROUP, CLUSTER> TileScheduler;

// a [m][k], b [n][k], out [m][n]; scales: see operator.py
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    scaled_matmul_pingpong(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                           const __grid_constant__ TensorMap map_out, const float* __restrict__ scale_a,
                           const float* __restrict__ scale_b, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Stages::bytes;
    const unsigned barriers = slabs + EpilogueSmem<>::block_bytes;
    Stages ring(memory, barriers);
    PingPong ping_pong(barriers + Stages::barrier_bytes);
    const TileScheduler scheduler(m, n);
    const int steps = (k + 127) / 128;
    if (threadIdx.x == 0) {
        ping_pong.init();
        ring.init();
    }
    sync_blocks<CLUSTER>();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0) fill_tiles<128, CLUSTER>(ring, scheduler, steps, &map_a, &map_b);
    } else {
        registers_up<consumer_registers>();
        const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        float sum[2][64];
        EpilogueSmem<> out_slabs(slabs);
        ping_pong.for_each_tile(scheduler, ring, steps, [&](TilePlace tile) {
            ring.drain(steps, [&](int step, unsigned a) {
                multiply_bytes<types>(sum, a, a + 128 * 128, step > 0);
                if (step == steps - 1) ping_pong.end();
            });
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row = tile.row + i * 64 + warp * 16;
                const int top = min(row + lane / 4, m - 1), bottom = min(row + lane / 4 + 8, m - 1);
                const float above = scale_a[BY_ROW ? top : 0], below = scale_a[BY_ROW ? bottom : 0];
#pragma unroll
                for (int j = 0; j < 64; ++j) {
                    const int at = BY_ROW ? min(tile.column + j / 4 * 8 + lane % 4 * 2 + j % 2, n - 1) : 0;
                    sum[i][j] *= (j / 2 % 2 ? below : above) * scale_b[at];
                }
                out_slabs.store_rows(sum[i], &map_out, row, tile.column, m, n);
            }
        });
        out_slabs.finish();
    }
    if (CLUSTER > 1) cluster_sync();  // a block must not exit while others may still write to its shared memory
}
