// /// opbench
// mechanism = ["shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core", "warp_specialised"]
// tile      = { m = "BM", n = "BN", k = "BK" }
// define.B_ROWS = "b_order == 'row'"
// define.BK     = "64 if PRODUCT == 'bf16' else 32"
// define.STAGES = "196608 // ((BM + BN) * 128)"
// compute_capability = "9.0a"
// tune      = { BM = [128, 256], BN = [256, 128, 64] }
// where     = ["BM == 128 or BN == 128"]
//
// [tensor_maps]
// map_a = { tensor = "a", type = "PRODUCT", box = ["BK", "BM"] }
// map_b = { tensor = "b", type = "PRODUCT", box = ["BK", "64 if B_ROWS else BN"] }
//
// [[launch]]
// kernel = "matmul_wgmma_ring"
// grid   = ["cdiv(m, BM) * cdiv(n, BN)"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 128 + 16)"
// args   = ["map_a", "map_b", "out", "m", "n", "k"]
//
// [variant.wgmma_ring_bf16]
// title     = "warp-specialised: a multi-stage pipeline, one producer warp for TMA, two consumer warpgroups"
// builds_on = "wgmma_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"], b_order = ["row", "col"] }
// requires  = ["k % 8 == 0 and n % 8 == 0"]
//
// [variant.wgmma_ring_tf32]
// title     = "TF32, warp-specialised: a multi-stage pipeline, one producer warp for TMA, two consumer warpgroups"
// builds_on = "wgmma_tf32"
// product   = "tf32"
// supports  = { b_order = ["col"] }
// requires  = ["k % 4 == 0 and n % 2 == 0"]
// ///
//
// Copies no longer wait for products. One thread copies, up to as many steps ahead as there are stages, and two
// warpgroups multiply the stages that have arrived. Each stage has two barriers: one counts the bytes that have
// arrived, the other the warps that have finished reading. So the loop has no barrier over the whole block, and neither
// side waits longer than necessary. The warpgroup that copies releases registers (setmaxnreg); the others then have 232
// registers per thread, enough for 64 x 256 or 128 x 128 sums per warpgroup. In bf16, a step with a tile of 128 x 256
// loads 48 KB for 4 MFLOP; with 128 x 128 it loads 32 KB for 2 MFLOP. Limit: while a block writes its tile, nothing is
// multiplied, and the next block starts with empty stages. After CUTLASS's warp-specialised kernels for Hopper and its
// pipeline.

#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

#if B_ROWS
constexpr bool by_n = true;
#else
constexpr bool by_n = false;
#endif
typedef Ring<STAGES, (BM + BN) * 128> Stages;

// a [m][k], b [k][n] (B_ROWS) or [n][k], out [m][n]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    matmul_wgmma_ring(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
#if BK == 64
                      unsigned short* __restrict__ out,
#else
                      float* __restrict__ out,
#endif
                      int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared);
    Stages ring(memory, memory + Stages::bytes);
    const int tiles_m = (m + BM - 1) / BM, steps = (k + BK - 1) / BK;  // neighbouring blocks share the columns of b
    const int row0 = (int)(blockIdx.x % tiles_m) * BM, column0 = (int)(blockIdx.x / tiles_m) * BN;
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x > 0) return;
        ring.fill(steps, [&](int step, unsigned a, unsigned full) {
            const unsigned b = a + BM * 128;
            load(a, &map_a, full, step * BK, row0);
            if constexpr (by_n) {
                for (int part = 0; part < BN / 64; ++part)
                    load(b + part * 64 * 128, &map_b, full, column0 + part * 64, step * BK);
            } else {
                load(b, &map_b, full, step * BK, column0);
            }
        });
    } else {
        registers_up<consumer_registers>();
        constexpr int tiles = BM / 128;  // tiles of 64 rows per warpgroup
        const int first = (threadIdx.x / 128 - 1) * tiles * 64, warp = threadIdx.x / 32 % 4;
        float sum[tiles][BN / 2];
        ring.drain(steps, [&](int step, unsigned a) {
            multiply_stage<Format::PRODUCT, by_n>(sum, a + first * 128, a + BM * 128, step > 0);
        });
#pragma unroll
        for (int i = 0; i < tiles; ++i) store_pairs(sum[i], out, row0 + first + i * 64 + warp * 16, column0, m, n);
    }
}
