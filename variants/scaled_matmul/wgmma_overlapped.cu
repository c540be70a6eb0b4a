// /// opbench
// title     = "overlapped epilogue: a tile is converted to bf16 and stored while the next one is multiplied"
// builds_on = "wgmma"
// mechanism = [
//     "shared_memory_tile", "register_tile", "bank_conflict_free", "double_buffer", "tma", "tensor_core",
//     "warp_specialised", "persistent", "cluster",
// ]
// product   = "fp8"
// tile      = { m = 128, n = "BN", k = 128 }
// supports  = { scaling = ["tensor", "row"], a_dtype = ["e4m3", "e5m2"], b_dtype = ["e4m3", "e5m2"] }
// requires  = ["k % 16 == 0 and n % 8 == 0 and k > 128 * (BN // 64 - 1)"]
// tune      = { BN = [256, 128], GROUP = [8, 16], CLUSTER = [1, 2] }
// where     = ["(BN, GROUP, CLUSTER) in ((256, 8, 1), (256, 16, 1), (256, 8, 2), (128, 8, 1))"]
// compute_capability = "9.0a"
//
// [define]
// A_E5M2 = "a_dtype == 'e5m2'"
// B_E5M2 = "b_dtype == 'e5m2'"
// BY_ROW = "scaling == 'row'"
// STAGES = "196608 // ((128 + BN) * 128)"
//
// [tensor_maps]
// map_a   = { tensor = "a", box = [128, 128] }
// map_b   = { tensor = "b", box = [128, "BN // CLUSTER"] }
// map_out = { tensor = "out", box = [64, 16] }
//
// [[launch]]
// kernel  = "scaled_matmul_overlapped"
// grid    = ["min(sm_count // CLUSTER, cdiv(m, 128 * CLUSTER) * cdiv(n, BN)) * CLUSTER"]
// block   = [384]
// cluster = ["CLUSTER"]
// shared  = "STAGES * ((128 + BN) * 128 + 16) + 32768"
// args    = ["map_a", "map_b", "map_out", "scale_a", "scale_b", "m", "n", "k"]
// ///
//
// In wgmma the tensor cores wait while a tile is scaled and stored. A ping-pong schedule avoids this wait, but its
// tiles are half as large, so L2 must deliver more bytes per product. Here tiles keep their size. The tensor cores wait
// only until the sums are scaled and packed, two bf16 in one register. Packed sums need half as many registers, so the
// sums of the next tile fit too, and its first steps overlap with the stores: one slab of 64 columns per step. Limit:
// power; registers, of which 192 hold sums.

#include <opbench/byte_wgmma.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

constexpr Bytes types = float_bytes(A_E5M2, B_E5M2);
constexpr int parts = BN / 64;  // slabs of a tile
typedef Ring<STAGES, (128 + BN) * 128, CLUSTER> Stages;
typedef Tiles<128, BN, GROUP, CLUSTER> TileScheduler;

// a [m][k], b [n][k], out [m][n]; scales: see operator.py
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    scaled_matmul_overlapped(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
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
        const int first = (threadIdx.x / 128 - 1) * 64, lane = threadIdx.x % 32, line = lane % 16;
        const int row_in_tile = first + threadIdx.x / 32 % 4 * 16;  // of the warp
        const unsigned own_slabs = slabs + (threadIdx.x / 32 - 4) * EpilogueSmem<>::warp_bytes;
        float sum[1][BN / 2];
        unsigned packed[BN / 4] = {};  // results of the previous tile, two columns in each
        int row = m, column = 0;       // the warp's part of the previous tile; row m: there is none, so store nothing
        const auto multiply = [&](int step, unsigned a) {
            multiply_bytes<types>(sum, a + first * 128, a + 128 * 128, step > 0);
        };
        // Store 64 columns of the previous tile through one of the warp's two slabs.
        const auto store_part = [&](int part) {
            const unsigned slab = own_slabs + part % 2 * EpilogueSmem<>::slab_bytes;
            if (lane == 0) wait_for_reads<1>();  // the slab's last store has been read
            __syncwarp();
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const unsigned* from = packed + part * 16 + j * 4;
                store_matrices(slab + line * 128 + ((2 * j + lane / 16) ^ line % 8) * 16, from[0], from[1], from[2],
                               from[3]);
            }
            fence_async();
            __syncwarp();
            if (lane == 0) {
                if (row < m && column + part * 64 < n) store(&map_out, slab, column + part * 64, row);
                commit_stores();
            }
        };
        scheduler.for_each_tile([&](TilePlace tile) {
            unsigned before = 0;
#pragma unroll
            for (int step = 0; step < parts; ++step) {
                ring.consume(step, multiply, before);
                store_part(step);
            }
            for (int step = parts; step < steps; ++step) ring.consume(step, multiply, before);
            wgmma_wait<0>();
            ring.release(before);
            row = tile.row + row_in_tile, column = tile.column;
            const int top = min(row + lane / 4, m - 1), bottom = min(row + lane / 4 + 8, m - 1);
            const float above = scale_a[BY_ROW ? top : 0], below = scale_a[BY_ROW ? bottom : 0];
#pragma unroll
            for (int i = 0; i < BN / 4; ++i) {
                const int at = column + i / 2 * 8 + lane % 4 * 2;
                const float of_row = i % 2 ? below : above;
                packed[i] = pack_bf16(sum[0][i * 2] * (of_row * scale_b[BY_ROW ? min(at, n - 1) : 0]),
                                      sum[0][i * 2 + 1] * (of_row * scale_b[BY_ROW ? min(at + 1, n - 1) : 0]));
            }
        });
#pragma unroll
        for (int part = 0; part < parts; ++part) store_part(part);
        if (lane == 0) wait_for_stores<0>();
    }
    if (CLUSTER > 1) cluster_sync();  // a block that has left cannot be written to
}
