// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core", "warp_specialised",
//     "persistent",
// ]
// tile      = { m = "BM", n = "BN", k = "BK" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "add", "mask", "add_mask"] }
// requires  = [
//     "stride == 1 and padding < r and padding < s and r <= 16 and s <= 16", "n * h * w + 512 < 2 ** 31",
//     "r * s * k * c < 2 ** 31",
// ]
// define.BK        = "64 if PRODUCT == 'bf16' else 32"
// define.ROOM      = "cdiv(BN, 64) * 64 if PRODUCT == 'bf16' else BN"
// define.STAGES    = "196608 // ((BM + ROOM) * 128)"
// define.WITH_SKIP = "epilogue in ('add', 'add_mask')"
// define.WITH_OUT  = "epilogue in ('mask', 'add_mask')"
// define.GROUP     = "8"
// compute_capability = "9.0a"
// tune      = { BM = [128, 256], BN = [128, 64, 256, 96] }
// where     = ["BM == 128 or BN in (64, 96, 128)"]
//
// [tensor_maps.map_dout]
// tensor = "dout"
// type   = "PRODUCT"
//
// [tensor_maps.map_dout.im2col]
// lower    = ["padding - s + 1", "padding - r + 1"]
// upper    = ["-padding", "-padding"]
// channels = "BK"
// pixels   = "BM"
//
// [variant.nhwc_wgmma_bf16]
// title     = "implicit GEMM: bf16 wgmma and TMA in im2col mode over dout; wgmma transposes the filters"
// builds_on = "nhwc_mma_bf16"
// mechanism = ["bank_conflict_free"]
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["c % 8 == 0 and k % 8 == 0", "BN != 96 or c <= 96"]
// tensor_maps.map_weight = { tensor = "weight", dims = ["c", "r * s", "k"], box = [64, 1, 64] }
// tensor_maps.map_skip   = { tensor = "skip", dims = ["c", "n * h * w"], box = [64, "BM"] }
// tensor_maps.map_out    = { tensor = "out", dims = ["c", "n * h * w"], box = [64, "BM"] }
// tensor_maps.map_dimage = { tensor = "dimage", dims = ["c", "n * h * w"], box = [64, 16] }
//
// [[variant.nhwc_wgmma_bf16.launch]]
// kernel = "conv2d_dgrad_nhwc_wgmma"
// grid   = ["min(sm_count, cdiv(n * h * w, BM) * cdiv(c, BN))"]
// block  = [384]
// shared = "STAGES * ((BM + ROOM) * 128 + 16) + 32768"
// args   = [
//     "map_dout", "map_weight", "map_skip?", "map_out?", "map_dimage", "n", "h", "w", "c", "k", "r", "s", "padding",
// ]
//
// [variant.nhwc_wgmma_tf32]
// title     = "implicit GEMM: TF32 wgmma and TMA in im2col mode over dout; a separate kernel transposes the filters"
// builds_on = "nhwc_mma_tf32"
// mechanism = ["vectorised_access"]
// product   = "tf32"
// requires  = ["c % 4 == 0 and k % 4 == 0"]
// workspace = { turned = "k * c * r * s" }
// tensor_maps.map_weight = { tensor = "turned", type = "tf32", dims = ["k", "r * s", "c"], box = [32, 1, "BN"] }
//
// [[variant.nhwc_wgmma_tf32.launch]]
// kernel = "conv2d_dgrad_transpose_filters"
// grid   = ["cdiv(c, 64)", "cdiv(k, 64)", "r * s"]
// block  = [256]
// args   = ["weight", "turned", "k", "c"]
//
// [[variant.nhwc_wgmma_tf32.launch]]
// kernel = "conv2d_dgrad_nhwc_wgmma"
// grid   = ["min(sm_count, cdiv(n * h * w, BM) * cdiv(c, BN))"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 128 + 16)"
// args   = ["map_dout", "map_weight", "skip?", "out?", "dimage", "n", "h", "w", "c", "k", "r", "s", "padding"]
// ///
//
// The gradient of an image is the convolution of dout with filters that are rotated by 180 degrees and transposed.
// TMA's im2col mode loops over the windows of dout. To rotate the filters, the kernel counts filter positions
// downwards. wgmma takes 16-bit operands in either order, so it reads the filters as they are stored. For TF32, wgmma
// only reads operands whose rows run along k, so a small pass writes the filters in that order. The schedule is that of
// conv2d/nhwc_wgmma: a copying thread, two multiplying warpgroups, persistent blocks. In bf16, a gradient that is added
// and the output of the ReLU before come through the ring after a tile's products; in float, each thread reads them
// from global memory. Limit: L2, as each pixel of dout is fetched r s times.

#include <opbench/consumer_tiles.cuh>
#include <opbench/gradients.cuh>
#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
#include <opbench/transposed.cuh>
using namespace opbench;

typedef Ring<STAGES, (BM + ROOM) * 128> Stages;
typedef Tiles<BM, BN, GROUP> TileScheduler;
typedef OperandStages<BM, BN> Operands;
typedef Stored<Format::PRODUCT>::T T;

// dout [n][h'][w'][k], weight [k][r][s][c] (bf16) or [c][r][s][k], skip, out and dimage [n][h][w][c]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv2d_dgrad_nhwc_wgmma(const __grid_constant__ TensorMap map_dout, const __grid_constant__ TensorMap map_weight,
#if BK == 64
#if WITH_SKIP
                            const __grid_constant__ TensorMap map_skip,
#endif
#if WITH_OUT
                            const __grid_constant__ TensorMap map_out,
#endif
                            const __grid_constant__ TensorMap map_dimage,
#else
#if WITH_SKIP
                            const T* __restrict__ skip,
#endif
#if WITH_OUT
                            const T* __restrict__ out,
#endif
                            T* __restrict__ dimage,
#endif
                            int n, int h, int w, int c, int k, int r, int s, int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Stages::bytes;
    Stages ring(memory, slabs + (BK == 64 ? EpilogueSmem<>::block_bytes : 0));
    const int pixels = n * h * w, steps = r * s * ((k + BK - 1) / BK);
    const TileScheduler scheduler(pixels, c);
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0)
            scheduler.for_each_tile([&](TilePlace tile) {
                const int image = tile.row / (h * w), pixel = tile.row % (h * w);
                const int x = pixel % w - (s - 1 - padding), y = pixel / w - (r - 1 - padding);
                int filter = 0, i = 0, j = 0;  // of the turned filter
                ring.fill(steps, [&](int, unsigned a, unsigned full) {
                    const unsigned b = a + BM * 128;
                    const int position = r * s - 1 - (i * s + j);
                    load_windows(a, &map_dout, full, filter, x, y, image, j, i);
#if BK == 64
                    for (int part = 0; part < BN; part += 64)
                        load(b + part * 128, &map_weight, full, tile.column + part, position, filter);
#else
                    load(b, &map_weight, full, filter, position, tile.column);
#endif
                    if ((filter += BK) < k) return;
                    filter = 0;
                    if (++j == s) j = 0, ++i;
                });
#if BK == 64 && WITH_SKIP
                Operands::copy(ring, &map_skip, tile);
#endif
#if BK == 64 && WITH_OUT
                Operands::copy(ring, &map_out, tile);
#endif
            });
    } else {
        registers_up<consumer_registers>();
        EpilogueSmem<> out_slabs(slabs);
#if BK == 64
        multiply_tiles<Format::PRODUCT, true>(
            ring, scheduler, steps,
            [&](auto& sum) {
#if WITH_SKIP
                Operands::combine(ring, sum, finished<add>);
#endif
#if WITH_OUT
                Operands::combine(ring, sum, finished<mask>);
#endif
            },
            [&](auto& sum, int row, int column) { out_slabs.store_rows(sum, &map_dimage, row, column, pixels, c); });
#else
        multiply_tiles<Format::PRODUCT, false>(ring, scheduler, steps, [&](auto& sum, int row, int column) {
#if WITH_SKIP
            combine_pairs(sum, skip, row, column, pixels, c, finished<add>);
#endif
#if WITH_OUT
            combine_pairs(sum, out, row, column, pixels, c, finished<mask>);
#endif
            store_pairs(sum, dimage, row, column, pixels, c);
        });
#endif
        if (BK == 64) out_slabs.finish();
    }
}

// turned [c][r s][k] = weight [k][r s][c]
extern "C" __global__ void __launch_bounds__(256)
    conv2d_dgrad_transpose_filters(const float* __restrict__ weight, float* __restrict__ turned, int k, int c) {
    const int position = blockIdx.z, positions = gridDim.z;
    transpose_tile(weight + position * c, turned + position * k, k, c, positions * c, positions * k);
}
