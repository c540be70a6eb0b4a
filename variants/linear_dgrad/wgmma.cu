// /// opbench
// title     = "bf16 wgmma and TMA, stream-K: blocks get equal shares of the steps; wgmma transposes the weights"
// builds_on = "mma_bf16_split"
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core",
//     "warp_specialised",
// ]
// product   = "bf16"
// supports  = { dtype = ["bf16"], epilogue = ["none", "mask", "gelu_tanh"] }
// requires  = ["n % 8 == 0 and k % 8 == 0", "(BLOCKS + TILES) * 16384 <= 2 ** 30 and k * max(m, n) < 2 ** 31"]
// compute_capability = "9.0a"
// workspace = { parts = "(BLOCKS + TILES) * 16384" }
//
// [define]
// TILES    = "cdiv(m, 128) * cdiv(k, 128)"
// BLOCKS   = "min(132, cdiv(TILES * cdiv(n, 64), 4))"
// EPILOGUE = "'plain' if epilogue == 'none' else epilogue"
// OTHER    = "epilogue != 'none'"
//
// [tensor_maps]
// map_dout   = { tensor = "dout", box = [64, 128] }
// map_weight = { tensor = "weight", box = [64, 64] }
//
// [[launch]]
// kernel = "linear_dgrad_wgmma"
// grid   = ["BLOCKS"]
// block  = [384]
// shared = "6 * (32768 + 16)"
// args   = ["map_dout", "map_weight", "parts", "m", "n", "k"]
//
// [[launch]]
// kernel = "linear_dgrad_add_parts"
// grid   = ["cdiv(m * k, 1024)"]
// block  = [256]
// args   = ["parts", "out?", "a?", "dx", "m", "n", "k", "BLOCKS"]
// ///
//
// matmul/wgmma_persistent with b stored by rows, as the weights are, for the batch of a training step. A layer then has
// too few tiles for all multiprocessors, or too many for one wave and too few for two, and most of its bytes are
// weights. So each block processes the same number of steps, of one tile or of two, and keeps six stages of copies in
// flight. A second kernel adds the partial sums in order and applies the mask of the previous layer's ReLU. Limit:
// DRAM. Idea: Stream-K.

#include <opbench/gradients.cuh>
#include <opbench/ring.cuh>
#include <opbench/stream_k.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

// dout [m][n], weight [n][k], parts [BLOCKS + TILES][128][128]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    linear_dgrad_wgmma(const __grid_constant__ TensorMap map_dout, const __grid_constant__ TensorMap map_weight,
                       float* __restrict__ parts, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared);
    Ring<6, 32768> ring(memory, memory + 6 * 32768);
    const StreamK share(m, k, (n + 63) / 64, gridDim.x);
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        const int first = share.begin(blockIdx.x);
        if (threadIdx.x > 0) return;
        ring.fill(share.begin(blockIdx.x + 1) - first, [&](int step, unsigned a, unsigned full) {
            const int tile = (first + step) / share.steps, depth = (first + step) % share.steps * 64;
            load(a, &map_dout, full, depth, share.row(tile));
            load(a + 16384, &map_weight, full, share.column(tile), depth);
            load(a + 24576, &map_weight, full, share.column(tile) + 64, depth);
        });
    } else {
        registers_up<consumer_registers>();
        const int row = (threadIdx.x / 128 - 1) * 64;
        float sum[1][64];
        share.for_each_tile([&](int tile, int steps) {
            ring.drain(steps, [&](int step, unsigned a) {
                multiply_stage<Format::bf16, true>(sum, a + row * 128, a + 16384, step > 0);
            });
            share.store(sum[0], parts, tile, row + threadIdx.x / 32 % 4 * 16);
        });
    }
}

// other (out or a) and dx [m][k]
extern "C" __global__ void __launch_bounds__(256)
    linear_dgrad_add_parts(const float* __restrict__ parts,
#if OTHER
                           const __nv_bfloat16* __restrict__ other,
#endif
                           __nv_bfloat16* __restrict__ dx, int m, int n, int k, int blocks) {
#if !OTHER
    const __nv_bfloat16* other = nullptr;
#endif
    StreamK(m, k, (n + 63) / 64, blocks).add(parts, m, k, [&](const float (&sum)[4], int row, int column) {
        const size_t at = (size_t)row * k + column;
        finish_vector<EPILOGUE>(dx + at, sum, OTHER ? other + at : nullptr);
    });
}
