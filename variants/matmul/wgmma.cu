// /// opbench
// mechanism = ["shared_memory_tile", "register_tile", "tma", "tensor_core"]
// define    = { B_ROWS = "b_order == 'row'", BK = "64 if PRODUCT == 'bf16' else 32" }
// compute_capability = "9.0a"
// tune      = { BN = [128, 256, 64] }
//
// [tensor_maps]
// map_a = { tensor = "a", type = "PRODUCT", box = ["BK", 128] }
// map_b = { tensor = "b", type = "PRODUCT", box = ["BK", "64 if B_ROWS else BN"] }
//
// [[launch]]
// kernel = "matmul_wgmma"
// grid   = ["cdiv(m, 128) * cdiv(n, BN)"]
// block  = [256]
// shared = "(128 + BN) * 128 + 8"
// args   = ["map_a", "map_b", "out", "m", "n", "k"]
//
// [variant.wgmma_bf16]
// title     = "bf16 wgmma, the matrix instruction of a warpgroup, with TMA: one copy per tile, a single stage"
// builds_on = "mma_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"], b_order = ["row", "col"] }
// requires  = ["k % 8 == 0 and n % 8 == 0"]
//
// [variant.wgmma_tf32]
// title     = "TF32 wgmma, the matrix instruction of a warpgroup, with TMA: one copy per tile, a single stage"
// builds_on = "mma_tf32"
// product   = "tf32"
// supports  = { b_order = ["col"] }
// requires  = ["k % 4 == 0 and n % 2 == 0"]
// ///
//
// With mma.sync nearly two fifths of Hopper's tensor cores are idle, because each warp first loads its fragments into
// registers. wgmma multiplies 64 rows by up to 256 columns directly from shared memory, for four warps at a time, and
// runs asynchronously. TMA loads a tile with one instruction of one thread, which neither computes addresses nor checks
// edges: elements outside the matrix arrive as zeros. The swizzle of the tensor map is the one in wgmma's descriptor. A
// b that is stored by rows needs no transposition: for 16-bit operands, a descriptor can say that rows run along n
// instead of k. Limit: there is one stage, so copies wait for products and products for copies; only other blocks of
// the multiprocessor fill the gaps. After the PTX ISA's chapters on wgmma and cp.async.bulk.tensor.

#include <opbench/barrier.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
#include <opbench/wgmma.cuh>
using namespace opbench;

constexpr int rows = 128;
#if B_ROWS
constexpr bool by_n = true;
#else
constexpr bool by_n = false;
#endif

// a [m][k], b [k][n] (B_ROWS) or [n][k], out [m][n]
extern "C" __global__ void __launch_bounds__(256)
    matmul_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
#if BK == 64
                 unsigned short* __restrict__ out,
#else
                 float* __restrict__ out,
#endif
                 int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned a = shared_address(shared), b = a + rows * 128, full = b + BN * 128;
    const int tiles_m = (m + rows - 1) / rows;  // neighbouring blocks share the columns of b
    const int row0 = (int)(blockIdx.x % tiles_m) * rows, column0 = (int)(blockIdx.x / tiles_m) * BN;
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        barrier_init_fence();
    }
    __syncthreads();

    const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;  // of 64 rows each
    float sum[1][BN / 2];
    for (int step = 0; step * BK < k; ++step) {
        if (threadIdx.x == 0) {
            arrive_expect(full, (rows + BN) * 128);
            load(a, &map_a, full, step * BK, row0);
            if constexpr (by_n) {
                for (int part = 0; part < BN / 64; ++part)
                    load(b + part * 64 * 128, &map_b, full, column0 + part * 64, step * BK);
            } else {
                load(b, &map_b, full, step * BK, column0);
            }
        }
        wait_for(full, step % 2);
        wgmma_fence();
        multiply_stage<Format::PRODUCT, by_n>(sum, a + group * 64 * 128, b, step > 0);
        wgmma_commit();
        wgmma_wait<0>();
        __syncthreads();  // both warpgroups have read the stage
    }
    store_pairs(sum[0], out, row0 + group * 64 + warp * 16, column0, m, n);
}
