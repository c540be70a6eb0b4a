// /// opbench
// title     = "8-bit wgmma with a TMA pipeline in persistent blocks; a cluster may share loads of b (multicast)"
// builds_on = "mma"
// mechanism = [
//     "shared_memory_tile", "register_tile", "bank_conflict_free", "double_buffer", "tma", "tensor_core",
//     "warp_specialised", "persistent", "cluster",
// ]
// product   = "s8"
// tile      = { m = 128, n = "BN", k = 128 }
// tune      = { BN = [256, 128], GROUP = [8, 16], CLUSTER = [1, 2] }
// where     = ["(BN, GROUP, CLUSTER) in ((256, 8, 1), (256, 16, 1), (256, 8, 2), (128, 8, 1))"]
// requires  = ["k % 16 == 0 and n % 2 == 0"]
// define.STAGES = "196608 // ((128 + BN) * 128)"
// compute_capability = "9.0a"
//
// [tensor_maps]
// map_a = { tensor = "a", box = [128, 128] }
// map_b = { tensor = "b", box = [128, "BN // CLUSTER"] }
//
// [[launch]]
// kernel  = "int8_matmul_wgmma"
// grid    = ["min(sm_count // CLUSTER, cdiv(m, 128 * CLUSTER) * cdiv(n, BN)) * CLUSTER"]
// block   = [384]
// cluster = ["CLUSTER"]
// shared  = "STAGES * ((128 + BN) * 128 + 16)"
// args    = ["map_a", "map_b", "out", "m", "n", "k"]
// ///
//
// One thread copies 128 elements along k of both operands per stage. Two warpgroups multiply 64 rows each, 32 elements
// along k per instruction. The 32-bit sums have twice the bytes of a bf16 result; four lanes write a sector. A cluster
// of two blocks may share the copies of b, which is faster only if L2 is the limit. Limit: the stores, during which the
// tensor cores wait, and power. After CUTLASS's persistent schedules.

#include <opbench/byte_wgmma.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

typedef Ring<STAGES, (128 + BN) * 128, CLUSTER> Stages;
typedef Tiles<128, BN, GROUP, CLUSTER> TileScheduler;

// a [m][k], b [n][k], out [m][n]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    int8_matmul_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                      int* __restrict__ out, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared);
    Stages ring(memory, memory + Stages::bytes);
    const TileScheduler scheduler(m, n);
    const int steps = (k + 127) / 128;
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0) fill_tiles<BN, CLUSTER>(ring, scheduler, steps, &map_a, &map_b);
    } else {
        registers_up<consumer_registers>();
        const int first = (threadIdx.x / 128 - 1) * 64, lane = threadIdx.x % 32;
        const int line = first + threadIdx.x / 32 % 4 * 16 + lane / 4;  // the thread's first row in its tile
        int sum[1][BN / 2];
        scheduler.for_each_tile([&](TilePlace tile) {
            ring.drain(steps, [&](int step, unsigned a) {
                multiply_bytes<Bytes::s8>(sum, a + first * 128, a + 128 * 128, step > 0);
            });
#pragma unroll
            for (int i = 0; i < BN / 4; ++i) {  // pairs of neighbouring columns
                const int row = tile.row + line + i % 2 * 8, column = tile.column + i / 2 * 8 + lane % 4 * 2;
                if (row < m && column < n)
                    *reinterpret_cast<int2*>(out + (size_t)row * n + column) =
                        make_int2(sum[0][i * 2], sum[0][i * 2 + 1]);
            }
        });
    }
    if (CLUSTER > 1) cluster_sync();  // a block must not exit while others may still write to its shared memory
}
