// /// opbench
// title     = "wgmma and TMA in persistent blocks, which process the tiles of all groups"
// builds_on = "mma"
// mechanism = [
//     "shared_memory_tile", "register_tile", "bank_conflict_free", "double_buffer", "tma", "tensor_core",
//     "warp_specialised", "persistent",
// ]
// product   = "bf16"
// tile      = { m = 128, n = "BN", k = 64 }
// tune      = { BN = [256, 128] }
// requires  = ["k % 8 == 0 and n % 8 == 0", "(cdiv(m, 128) + groups) * cdiv(n, BN) < 2 ** 31"]
// define.STAGES = "196608 // ((128 + BN) * 128)"
// compute_capability = "9.0a"
//
// [tensor_maps]
// map_a   = { tensor = "a", box = [64, 128] }
// map_b   = { tensor = "b", box = [64, "BN", 1] }
// map_out = { tensor = "out", box = [64, 16] }
//
// [[launch]]
// kernel = "grouped_matmul_wgmma"
// grid   = ["min(sm_count, (cdiv(m, 128) + groups) * cdiv(n, BN))"]
// block  = [384]
// shared = "STAGES * ((128 + BN) * 128 + 16) + 32768"
// args   = ["map_a", "map_b", "map_out", "ends", "out", "m", "n", "k", "groups"]
// ///
//
// The matrices of all groups are one tensor whose last coordinate is the group, so the kernel changes no tensor map.
// Every warp finds the ends of the groups by itself, and persistent blocks go from one group to the next without a
// pause, so small groups leave no multiprocessors idle. A tile starts at the first row of its group. A copy of rows of
// a can also load rows of the next group; their products are computed and not stored. TMA cannot omit single rows, so a
// warp whose 16 rows are not all in the group uses ordinary stores. Limit: the tensor cores; in groups with fewer rows
// than a tile, the rest of the products is wasted. Idea: CUTLASS's grouped kernels.

#include <opbench/groups.cuh>
#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

typedef Ring<STAGES, (128 + BN) * 128> Stages;

// a [m][k], b [groups][n][k], ends [groups], out [m][n]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    grouped_matmul_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                         const __grid_constant__ TensorMap map_out, const int* __restrict__ ends,
                         unsigned short* __restrict__ out, int m, int n, int k, int groups) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Stages::bytes;
    Stages ring(memory, slabs + EpilogueSmem<>::block_bytes);
    GroupScheduler<128> scheduler(ends, groups, (n + BN - 1) / BN);
    const int steps = (k + 63) / 64;
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x > 0) return;
        for (int index = blockIdx.x;; index += gridDim.x) {
            const GroupTile tile = scheduler(index);
            if (!tile.exists()) return;
            ring.fill(steps, [&](int step, unsigned a, unsigned full) {
                load(a, &map_a, full, step * 64, tile.row);
                load(a + 128 * 128, &map_b, full, step * 64, tile.column * BN, tile.group);
            });
        }
    } else {
        registers_up<consumer_registers>();
        const int first = (threadIdx.x / 128 - 1) * 64, line = first + threadIdx.x / 32 % 4 * 16;
        float sum[1][BN / 2];
        EpilogueSmem<> out_slabs(slabs);
        for (int index = blockIdx.x;; index += gridDim.x) {
            const GroupTile tile = scheduler(index);
            if (!tile.exists()) break;
            ring.drain(steps, [&](int step, unsigned a) {
                multiply_stage<Format::bf16>(sum, a + first * 128, a + 128 * 128, step > 0);
            });
            const int row = tile.row + line, column = tile.column * BN;
            if (row + 16 <= tile.end)
                out_slabs.store_rows(sum[0], &map_out, row, column, m, n);
            else
                store_pairs(sum[0], out, row, column, tile.end, n);
        }
        out_slabs.finish();
    }
}
