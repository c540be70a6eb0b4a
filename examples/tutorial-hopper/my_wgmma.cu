// /// opbench
// operator    = "matmul"
// title       = "bf16 wgmma with TMA: one copy per tile, a single stage"
// product     = "bf16"
// supports    = { dtype = ["bf16"], b_order = ["col"] }
// requires    = ["k % 8 == 0 and n % 8 == 0"]
// compute_capability = "9.0a"
// tune        = { BN = [64] }
// tensor_maps = { map_a = { tensor = "a", box = [64, 128] }, map_b = { tensor = "b", box = [64, "BN"] } }
//
// [[launch]]
// kernel = "my_wgmma"
// grid   = ["cdiv(m, 128)", "cdiv(n, BN)"]
// block  = [256]
// shared = "(128 + BN) * 128 + 8"
// args   = ["map_a", "map_b", "out", "m", "n", "k"]
// ///
//
// Two warpgroups multiply 64 rows each, straight from shared memory, where TMA has put the tiles.
#include <opbench/barrier.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
#include <opbench/wgmma.cuh>
using namespace opbench;

// a [m][k], b [n][k], out [m][n]
extern "C" __global__ void __launch_bounds__(256)
    my_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, unsigned short* out,
             int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned a = shared_address(shared), b = a + 128 * 128, full = b + BN * 128;
    const int row = blockIdx.x * 128, column = blockIdx.y * BN, group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        barrier_init_fence();
    }
    __syncthreads();
    float sum[1][BN / 2];
    for (int step = 0; step * 64 < k; ++step) {
        if (threadIdx.x == 0) {
            arrive_expect(full, (128 + BN) * 128);
            load(a, &map_a, full, step * 64, row);
            load(b, &map_b, full, step * 64, column);
        }
        wait_for(full, step % 2);
        wgmma_fence();
        multiply_stage<Format::bf16>(sum, a + group * 64 * 128, b, step > 0);
        wgmma_commit();
        wgmma_wait<0>();
        __syncthreads();
    }
    store_pairs(sum[0], out, row + group * 64 + warp * 16, column, m, n);
}
