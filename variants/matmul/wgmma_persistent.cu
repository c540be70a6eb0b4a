// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core", "warp_specialised",
//     "persistent", "cluster",
// ]
// tile      = { m = "BM", n = "BN", k = "BK" }
// define.B_ROWS = "b_order == 'row' and PRODUCT == 'bf16'"
// define.PASS   = "b_order == 'row' and PRODUCT == 'tf32'"
// define.BK     = "64 if PRODUCT == 'bf16' else 32"
// define.STAGES = "196608 // ((BM + BN) * 128)"
// compute_capability = "9.0a"
// tune      = { BM = [128, 256], BN = [256, 192, 128, 64], GROUP = [8, 16], CLUSTER = [1, 2] }
// where     = [
//  "BM == 128 or BN == 128", "GROUP == 8 or (BM, BN, CLUSTER) == (128, 256, 1)", "CLUSTER == 1 or BN in (128, 256)",
// ]
//
// [tensor_maps]
// map_a = { tensor = "a", type = "PRODUCT", box = ["BK", "BM"] }
// map_b = { tensor = "b", type = "PRODUCT", box = ["BK", "64 if B_ROWS else BN // CLUSTER"] }
//
// [variant.wgmma_persistent_bf16]
// title     = "persistent blocks: the next tile is loaded while TMA stores one; a cluster may share loads of b"
// builds_on = "wgmma_ring_bf16"
// mechanism = ["bank_conflict_free"]
// product   = "bf16"
// supports  = { dtype = ["bf16"], b_order = ["row", "col"] }
// requires  = ["k % 8 == 0 and n % 8 == 0"]
// tensor_maps.map_out = { tensor = "out", box = [64, 16] }
//
// [[variant.wgmma_persistent_bf16.launch]]
// kernel  = "matmul_wgmma_persistent"
// grid    = ["min(sm_count // CLUSTER, cdiv(m, BM * CLUSTER) * cdiv(n, BN)) * CLUSTER"]
// block   = [384]
// cluster = ["CLUSTER"]
// shared  = "STAGES * ((BM + BN) * 128 + 16) + 32768"
// args    = ["map_a", "map_b", "map_out", "m", "n", "k"]
//
// [variant.wgmma_persistent_tf32]
// title     = "TF32, persistent blocks: the next tile is loaded while the current one is stored"
// builds_on = "wgmma_ring_tf32"
// product   = "tf32"
// supports  = { b_order = ["col"] }
// requires  = ["k % 4 == 0 and n % 2 == 0"]
//
// [[variant.wgmma_persistent_tf32.launch]]
// kernel  = "matmul_wgmma_persistent"
// grid    = ["min(sm_count // CLUSTER, cdiv(m, BM * CLUSTER) * cdiv(n, BN)) * CLUSTER"]
// block   = [384]
// cluster = ["CLUSTER"]
// shared  = "STAGES * ((BM + BN) * 128 + 16)"
// args    = ["map_a", "map_b", "out", "m", "n", "k"]
//
// [variant.wgmma_transposed_tf32]
// title     = "TF32 of row-major b: a separate kernel transposes b, because TF32 wgmma needs column-major operands"
// builds_on = "wgmma_persistent_tf32"
// mechanism = ["vectorised_access", "overlapped_launch"]
// product   = "tf32"
// requires  = ["k % 4 == 0 and n % 4 == 0"]
// workspace = { columns = "n * k" }
// tensor_maps.map_b = { tensor = "columns", type = "tf32", dims = ["k", "n"], box = ["BK", "BN // CLUSTER"] }
//
// [[variant.wgmma_transposed_tf32.launch]]
// kernel  = "transpose_b"
// grid    = ["cdiv(n, 64)", "cdiv(k, 64)"]
// block   = [256]
// args    = ["b", "columns", "n", "k"]
//
// [[variant.wgmma_transposed_tf32.launch]]
// kernel  = "matmul_wgmma_persistent"
// programmatic = true
// grid    = ["min(sm_count // CLUSTER, cdiv(m, BM * CLUSTER) * cdiv(n, BN)) * CLUSTER"]
// block   = [384]
// cluster = ["CLUSTER"]
// shared  = "STAGES * ((BM + BN) * 128 + 16)"
// args    = ["map_a", "map_b", "out", "m", "n", "k"]
// ///
//
// One block per multiprocessor loops over tiles. The copying warp already loads the next tile's first stages while the
// other two warpgroups store their results, so the tensor cores wait only for the instructions of the stores. stmatrix
// writes a bf16 tile to 2 KB slabs of shared memory per warp. TMA stores the slabs, clipped at the edges, without a
// barrier of the block. Tiles are processed in groups of GROUP rows, so that operands of blocks that run at the same
// time stay in L2. A cluster of two blocks fetches each half of b for both, although loads of b from L2 do not limit
// 128 x 256 tiles. If a launch before transposes b, this kernel starts while the last blocks of that launch run, and
// prefetches a into L2 until they end. The tile shape is the one with the smallest product of waves and time per tile.
// Limit: power; the clock falls under load, as it does for cuBLAS. After CUTLASS's persistent schedules and P. Shah,
// Outperforming cuBLAS (2024).

#include <opbench/consumer_tiles.cuh>
#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
#include <opbench/transposed.cuh>
using namespace opbench;

typedef Ring<STAGES, (BM + BN) * 128, CLUSTER> Stages;
typedef Tiles<BM, BN, GROUP, CLUSTER> TileScheduler;
constexpr bool by_n = B_ROWS != 0;

// a [m][k], b [k][n] (B_ROWS) or [n][k], out [m][n]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    matmul_wgmma_persistent(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
#if BK == 64
                            const __grid_constant__ TensorMap map_out,
#else
                            float* __restrict__ out,
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
        if (threadIdx.x == 0) {
            if (PASS) {  // until the launch that transposes b has ended, only prefetch a into L2
                for (int step = 0; step < min(steps, STAGES); ++step)
                    prefetch(&map_a, step * BK, scheduler[scheduler.first].row);
                wait_for_launches_before();
            }
            scheduler.for_each_tile([&](TilePlace tile) {
                ring.fill(steps, [&](int step, unsigned a, unsigned full) {
                    load(a, &map_a, full, step * BK, tile.row);
                    constexpr int share = BN / CLUSTER, box = by_n ? 64 : share;  // each block fetches for all
#pragma unroll
                    for (int part = 0; part < share; part += box) {
                        const int own = scheduler.rank * share + part;
                        load_for_all<CLUSTER>(a + BM * 128 + own * 128, &map_b, full,
                                              by_n ? tile.column + own : step * BK,
                                              by_n ? step * BK : tile.column + own);
                    }
                });
            });
        }
    } else {
        registers_up<consumer_registers>();
        EpilogueSmem<> out_slabs(slabs);
        multiply_tiles<Format::PRODUCT, by_n>(ring, scheduler, steps, [&](auto& sum, int row, int column) {
#if BK == 64
            out_slabs.store_rows(sum, &map_out, row, column, m, n);
#else
                store_pairs(sum, out, row, column, m, n);
#endif
        });
        if (BK == 64) out_slabs.finish();
    }
    if (CLUSTER > 1) cluster_sync();  // a block that has left cannot be written to
}

// columns [n][k] = b [k][n]
extern "C" __global__ void __launch_bounds__(256)
    transpose_b(const float* __restrict__ b, float* __restrict__ columns, int n, int k) {
    let_next_launch_start();
    transpose_tile(b, columns, k, n, n, k);
}
