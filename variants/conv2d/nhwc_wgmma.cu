// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core", "warp_specialised",
//     "persistent",
// ]
// tile      = { m = "BM", n = "BN", k = "BK" }
// supports.layout   = ["nhwc"]
// supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish", "bias_hardsigmoid", "bias_add", "bias_add_relu"]
// requires  = [
//     "r <= 16 and s <= 16 and padding <= 16 and stride <= 8", "n * p * q + 512 < 2 ** 31", "r * s * k * c < 2 ** 31",
// ]
// define.BK       = "64 if PRODUCT == 'bf16' else 32"
// define.PAIRS    = "PRODUCT == 'bf16' and 64 < c < 128"
// define.SLICES   = "cdiv(c % 64, 16) if PRODUCT == 'bf16' and c < 128 and c % 64 > 0 else 4"
// define.STAGES   = "196608 // ((BM + BN) * 128)"
// define.BIAS     = "epilogue != 'none'"
// define.RESIDUAL = "'add' in epilogue"
// define.EPILOGUE = "epilogue"
// define.GROUP    = "8"
// define.FETCHED  = "0"
// compute_capability = "9.0a"
// tune      = { BM = [128, 256], BN = [128, 64, 256, 192] }
// where     = ["BM == 128 or BN in (64, 128)"]
//
// [tensor_maps.map_image]
// tensor = "image"
// type   = "PRODUCT"
// element_strides = [1, "stride", "stride", 1]
//
// [tensor_maps.map_image.im2col]
// lower    = ["-padding", "-padding"]
// upper    = ["padding - s + 1", "padding - r + 1"]
// channels = "BK"
// pixels   = "BM"
//
// [tensor_maps]
// map_weight = { tensor = "weight", type = "PRODUCT", dims = ["c", "r * s", "k"], box = ["BK", 1, "BN"] }
//
// [variant.nhwc_wgmma_bf16]
// title     = "implicit GEMM: bf16 wgmma and TMA in im2col mode, which gathers windows without address arithmetic"
// builds_on = "nhwc_mma_bf16"
// mechanism = ["bank_conflict_free"]
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["c % 8 == 0 and k % 8 == 0"]
// tensor_maps.map_out = { tensor = "out", dims = ["k", "n * p * q"], box = [64, 16] }
//
// [[variant.nhwc_wgmma_bf16.launch]]
// kernel = "conv2d_nhwc_wgmma"
// grid   = ["min(sm_count, cdiv(n * p * q, BM) * cdiv(k, BN))"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 128 + 16) + 32768"
// args   = [
//     "map_image", "map_weight", "bias?", "residual?", "map_out", "n", "p", "q", "k", "c", "r", "s", "stride",
//     "padding",
// ]
//
// [variant.nhwc_wgmma_bf16_residual]
// title     = "nhwc_wgmma_bf16 with a residual, which TMA loads during the multiplication"
// builds_on = "nhwc_wgmma_bf16"
// mechanism = ["bank_conflict_free"]
// product   = "bf16"
// supports  = { dtype = ["bf16"], epilogue = ["bias_add", "bias_add_relu"] }
// requires  = ["c % 8 == 0 and k % 8 == 0"]
// define    = { FETCHED = "1", STAGES = "(229376 - 2 * BM * BN) // ((BM + BN) * 128)" }
// tensor_maps.map_out      = { tensor = "out", dims = ["k", "n * p * q"], box = [64, 16] }
// tensor_maps.map_residual = { tensor = "residual", dims = ["k", "n * p * q"], box = [64, 16] }
//
// [[variant.nhwc_wgmma_bf16_residual.launch]]
// kernel = "conv2d_nhwc_wgmma"
// grid   = ["min(sm_count, cdiv(n * p * q, BM) * cdiv(k, BN))"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 128 + 16) + 2 * BM * BN + 64"
// args   = [
//     "map_image", "map_weight", "bias", "map_residual", "map_out", "n", "p", "q", "k", "c", "r", "s", "stride",
//     "padding",
// ]
//
// [variant.nhwc_wgmma_tf32]
// title     = "implicit GEMM: TF32 wgmma and TMA in im2col mode, which also rounds to TF32"
// builds_on = "nhwc_mma_tf32"
// product   = "tf32"
// requires  = ["c % 4 == 0 and k % 2 == 0"]
//
// [[variant.nhwc_wgmma_tf32.launch]]
// kernel = "conv2d_nhwc_wgmma"
// grid   = ["min(sm_count, cdiv(n * p * q, BM) * cdiv(k, BN))"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 128 + 16)"
// args   = [
//     "map_image", "map_weight", "bias?", "residual?", "out", "n", "p", "q", "k", "c", "r", "s", "stride", "padding",
// ]
// ///
//
// A convolution is the product of windows by filters. An im2col tensor map makes TMA treat windows as rows of a matrix:
// from a first window on, TMA takes BM windows along a row of the output, then the next rows, then the next image. Of
// each window it copies the pixel at filter position (r, s), or zeros if the pixel is outside the image. So this kernel
// is matmul's, with a depth that goes through filter positions and the channels of each. With mma.sync, in contrast,
// each thread computes and masks its own addresses, which takes as long as the products. TMA rounds to TF32, to nearest
// even.
//
// A block processes several tiles. It stores bf16 results to slabs of shared memory, and TMA copies the slabs to the
// output. With 96 channels, the second step of a filter position has 32 channels, and the zeros after them are not
// multiplied. The epilogue reads a residual with four bytes per lane, while the tensor cores wait; in
// nhwc_wgmma_bf16_residual TMA loads it into the slabs while they work. Limit: L2, as each pixel is fetched r s times.
// With 64 filters half of a tile of 128 columns would be empty, so BN is 64 there, and shared memory is the limit.
// After CUTLASS's implicit_gemm for sm90 (warp-specialised, im2col mode).

#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

typedef Ring<STAGES, (BM + BN) * 128> Stages;
typedef Tiles<BM, BN, GROUP> TileScheduler;
typedef Stored<Format::PRODUCT>::T T;
constexpr int activation_id = activation_of::EPILOGUE;

// image [n][h][w][c], weight [k][r][s][c], bias [k], residual and out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv2d_nhwc_wgmma(const __grid_constant__ TensorMap map_image, const __grid_constant__ TensorMap map_weight,
#if BIAS
                      const T* __restrict__ bias,
#endif
#if FETCHED
                      const __grid_constant__ TensorMap map_residual,
#elif RESIDUAL
                      const T* __restrict__ residual,
#endif
#if BK == 64
                      const __grid_constant__ TensorMap map_out,
#else
                      T* __restrict__ out,
#endif
                      int n, int p, int q, int k, int c, int r, int s, int stride, int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Stages::bytes;
#if FETCHED
    typedef OperandSmem<BM / 128, BN> Slabs;
    const unsigned residual_barriers = slabs + Slabs::block_bytes;
    Stages ring(memory, residual_barriers + Slabs::barrier_bytes);
    if (threadIdx.x == 0) Slabs::init(residual_barriers);
#else
    Stages ring(memory, slabs + (BK == 64 ? EpilogueSmem<>::block_bytes : 0));
#endif
    const int pixels = n * p * q, steps = r * s * ((c + BK - 1) / BK);
    const TileScheduler scheduler(pixels, k);
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0)
            scheduler.for_each_tile([&](TilePlace tile) {
                const int image = tile.row / (p * q), pixel = tile.row % (p * q);
                const int x = pixel % q * stride - padding, y = pixel / q * stride - padding;
                int channel = 0, i = 0, j = 0;  // filter position (i, j)
                ring.fill(steps, [&](int, unsigned a, unsigned full) {
                    load_windows(a, &map_image, full, channel, x, y, image, j, i);
                    load(a + BM * 128, &map_weight, full, channel, i * s + j, tile.column);
                    if ((channel += BK) < c) return;
                    channel = 0;
                    if (++j == s) j = 0, ++i;
                });
            });
    } else {
        registers_up<consumer_registers>();
        constexpr int tiles = BM / 128;  // of 64 pixels, that a warpgroup has
        const int first = (threadIdx.x / 128 - 1) * tiles * 64, warp = threadIdx.x / 32 % 4;
        float sum[tiles][BN / 2];
#if FETCHED
        Slabs residual(slabs, residual_barriers);
#else
        EpilogueSmem<> out_slabs(slabs);
#endif
        scheduler.for_each_tile([&](TilePlace tile) {
#if FETCHED
            residual.fetch(&map_residual, tile.row + first + warp * 16, tile.column, pixels, k);
#endif
            const auto last_channels = [&](int step, unsigned a) {
                multiply_stage<Format::PRODUCT, false, 128, SLICES>(sum, a + first * 128, a + BM * 128, step > 0);
            };
#if PAIRS
            const auto whole = [&](int step, unsigned a) {
                multiply_stage<Format::PRODUCT>(sum, a + first * 128, a + BM * 128, step > 0);
            };
            ring.drain_pairs(steps, whole, last_channels);
#else
            ring.drain(steps, last_channels);
#endif
#if FETCHED
            residual.wait();
#endif
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
                const int row = tile.row + first + i * 64 + warp * 16;
#if BIAS
                add_bias<RESIDUAL ? 0 : activation_id>(sum[i], bias, tile.column, k);
#endif
#if RESIDUAL && !FETCHED
                combine_pairs(sum[i], residual, row, tile.column, pixels, k,
                              [](float x, float y) { return apply_activation<activation_id>(x + y); });
#endif
#if FETCHED
                residual.store_combined(sum[i], i, &map_out, row, tile.column, pixels, k,
                                        [](float x, float y) { return apply_activation<activation_id>(x + y); });
#elif BK == 64
                out_slabs.store_rows(sum[i], &map_out, row, tile.column, pixels, k);
#else
                store_pairs(sum[i], out, row, tile.column, pixels, k);
#endif
            }
        });
        if (BK == 64) EpilogueSmem<>::finish();
    }
}
