// /// opbench
// title     = "one output tile per block, of a width with which the tiles fill all multiprocessors once"
// builds_on = "wgmma_bf16"
// mechanism = [
//     "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core", "warp_specialised",
//     "overlapped_launch",
// ]
// product   = "bf16"
// tile      = { m = 128, n = "BN", k = 64 }
// supports  = { dtype = ["bf16"], epilogue = ["none", "bias", "bias_relu", "bias_gelu_tanh"] }
// requires  = ["k % 8 == 0 and n % 8 == 0", "cdiv(m, 128) * cdiv(n, 48) < 2 ** 31"]
// define.STAGES  = "min(8, 231000 // ((128 + BN) * 128))"
// define.BIAS    = "epilogue != 'none'"
// define.FOLLOWS = "2 if epilogue == 'bias_gelu_tanh' else 1 if epilogue == 'bias_relu' else 0"
// compute_capability = "9.0a"
// tune      = { BN = [144, 48, 192, 96] }
//
// [tensor_maps]
// map_x      = { tensor = "x", box = [64, 128] }
// map_weight = { tensor = "weight", box = [64, "BN"] }
//
// [[launch]]
// kernel = "linear_wgmma_fitted"
// grid   = ["cdiv(m, 128) * cdiv(n, BN)"]
// block  = [384]
// shared = "STAGES * ((128 + BN) * 128 + 16)"
// programmatic = true
// early  = ["weight", "bias?"]
// args   = ["map_x", "map_weight", "bias?", "out", "m", "n", "k"]
// ///
//
// A layer of 1024 rows and 2304 columns has 144 tiles of 128 x 128, so after the first 132 tiles on 132 multiprocessors
// only 12 run. With tiles of 144 columns there are 128 tiles; with 768 columns, tiles of 48 columns give the same
// number. All tiles run at once, so blocks are not persistent. wgmma allows any multiple of 8 columns, but TMA stores
// boxes of 64 columns, so the sums are stored by 16-byte stores. Limit: L2, from which each row of x is read once per
// tile of columns; with GELU the exponentials, which follow the last product.

#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

typedef Ring<STAGES, (128 + BN) * 128> Stages;

// x [m][k], weight [n][k], bias [n], out [m][n]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    linear_wgmma_fitted(const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_weight,
#if BIAS
                        const unsigned short* __restrict__ bias,
#endif
                        unsigned short* __restrict__ out, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared);
    Stages ring(memory, memory + Stages::bytes);
    const int rows = (m + 127) / 128, steps = (k + 63) / 64;
    const int row = blockIdx.x % rows * 128, column = blockIdx.x / rows * BN;
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0)
            ring.fill_overlapped(
                steps,
                [&](int step, unsigned stage, unsigned full) {
                    load(stage + 128 * 128, &map_weight, full, step * 64, column);
                },
                [&](int step, unsigned stage, unsigned full) { load(stage, &map_x, full, step * 64, row); }, true);
    } else {
        registers_up<consumer_registers>();
        const int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 - 4;
        float sum[1][BN / 2];
        ring.drain(steps, [&](int step, unsigned stage) {
            multiply_stage<Format::bf16>(sum, stage + group * 64 * 128, stage + 128 * 128, step > 0);
        });
#if BIAS
        add_bias<FOLLOWS>(sum[0], bias, column, n);
#endif
        named_barrier_sync(1, 256);  // both warpgroups have read the stages, whose memory is used next
        store_lines(sum[0], shared + warp * 2048, out, row + warp * 16, column, m, n, n);
    }
}
