// /// opbench
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "double_buffer", "tma",
//     "tensor_core", "warp_specialised", "persistent", "converted_ahead",
// ]
// tile      = { m = "BM", n = "BN", k = "BK" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"] }
// requires  = [
//     "r <= 16 and s <= 16 and padding <= 16 and stride <= 8",
//     "c % 8 == 0 and k % 2 == 0",
//     "n * p * q + 512 < 2 ** 31",
//     "max(n * h * w, r * s * k) * c < 2 ** 31",
// ]
// compute_capability = "9.0a"
//
// [define]
// PAIRS  = "PLANES == 1 and 64 < c < 128"
// BK     = "32 if 0 < c % 64 <= 32 and not PAIRS else 64"
// SLICES = "cdiv(c - 64, 16) if PAIRS else BK // 16"
// BIAS  = "epilogue != 'none'"
// RELU  = "epilogue == 'bias_relu'"
// GROUP = "8"
//
// [workspace]
// image_planes     = "n * h * w * c // 2 * PLANES"
// filter_planes    = "k * r * s * c // 2 * PLANES"
// image_exponent   = "4"
// filter_exponents = "k"
// image_largest    = "4"
//
// [tensor_maps.map_image]
// tensor = "image_planes"
// type   = "f16"
// dims   = ["c", "w", "h", "PLANES * n"]
// element_strides = [1, "stride", "stride", 1]
// swizzle = "'64B' if BK == 32 else '128B'"
//
// [tensor_maps.map_image.im2col]
// lower    = ["-padding", "-padding"]
// upper    = ["padding - s + 1", "padding - r + 1"]
// channels = "BK"
// pixels   = "BM"
//
// [tensor_maps.map_filter]
// tensor = "filter_planes"
// type   = "f16"
// dims   = ["c", "r * s", "k", "PLANES"]
// box    = ["BK", 1, "BN", "PLANES"]
// swizzle = "'64B' if BK == 32 else '128B'"
//
// [[launch]]
// zero = "image_largest"
//
// [[launch]]
// kernel = "conv2d_find_image_split_filters"
// grid   = ["min(1056, max(k, cdiv(n * h * w * c, 4096)))", 1, 2]
// block  = [256]
// args   = [
//     "image", "image_largest", "weight", "filter_planes", "filter_exponents", "n", "h", "w * c", "k", "r * s * c",
// ]
//
// [[launch]]
// kernel = "conv2d_split_image"
// grid   = ["min(1056, cdiv(n * h * w * c, 4096))"]
// block  = [256]
// args   = ["image", "image_largest", "image_planes", "image_exponent", "n", "h", "w * c"]
//
// [[launch]]
// kernel = "conv2d_nhwc_wgmma_planes"
// grid   = ["min(sm_count, cdiv(n * p * q, BM) * cdiv(k, BN))"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 2 * BK * PLANES + 16)"
// args   = [
//     "map_image", "map_filter", "image_exponent", "filter_exponents", "bias?", "out", "n", "p", "q", "k", "c", "r",
//     "s", "stride", "padding",
// ]
//
// [variant.nhwc_wgmma_f16]
// title     = "TF32 accuracy by f16 wgmma, im2col mode: separate kernels round and scale image and filters"
// builds_on = "nhwc_wgmma_tf32"
// product   = "f16"
// precision = "tf32"
// tune      = { BM = [128], BN = [128, 192, 64, 256] }
// define    = { PLANES = "1", STAGES = "98304 // ((BM + BN) * BK)" }
//
// [variant.nhwc_wgmma_planes]
// title     = "wgmma with float32 accuracy, im2col mode: operands split into two f16 parts, three products"
// builds_on = "nhwc_wgmma_f16"
// mechanism = ["operand_split"]
// product   = "f16x3"
// tune      = { BM = [128], BN = [128] }
// define    = { PLANES = "2", STAGES = "192 // BK" }
// ///
//
// This is nhwc_wgmma on f16 with one plane or two, as in nhwc_wgmma_patch_planes. It is for convolutions for which
// patches do not work: strides, large filters, and images that patches of 16 x 8 or 32 x 8 pixels cover badly, such as
// 12 x 12 and 26 x 26 pixels, for which the passes cost little. Both planes of a pixel are loaded r s times, but tiles
// are as large as the result allows. A stage has 64 channels, or 32 if the last stage is then fuller. Limit: L2; 192
// sums per thread with two planes, so that tiles are 128 x 128.

#include <opbench/hi_lo_split.cuh>
#include <opbench/ring.cuh>
using namespace opbench;

constexpr int row_bytes = 2 * BK, rows_bytes = BM * row_bytes;  // of a plane
typedef Ring<STAGES, (BM + BN) * row_bytes * PLANES> Stages;
typedef Tiles<BM, BN, GROUP> TileScheduler;

// image_planes [PLANES][n][h][w][c], filter_planes [PLANES][k][r][s][c], bias [k], out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv2d_nhwc_wgmma_planes(const __grid_constant__ TensorMap map_image, const __grid_constant__ TensorMap map_filter,
                             const int* __restrict__ image_exponent, const int* __restrict__ filter_exponents,
#if BIAS
                             const float* __restrict__ bias,
#endif
                             float* __restrict__ out, int n, int p, int q, int k, int c, int r, int s, int stride,
                             int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared);
    Stages ring(memory, memory + Stages::bytes);
    const int pixels = n * p * q, steps = r * s * ((c + BK - 1) / BK);
    const TileScheduler scheduler(pixels, k);
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x > 0) return;
        scheduler.for_each_tile([&](TilePlace tile) {
            const int image = tile.row / (p * q), pixel = tile.row % (p * q);
            const int x = pixel % q * stride - padding, y = pixel / q * stride - padding;
            int channel = 0, i = 0, j = 0;  // filter position (i, j)
            ring.fill(steps, [&](int, unsigned a, unsigned full) {
                for (int plane = 0; plane < PLANES; ++plane)
                    load_windows(a + plane * rows_bytes, &map_image, full, channel, x, y, image + plane * n, j, i);
                load(a + PLANES * rows_bytes, &map_filter, full, channel, i * s + j, tile.column, 0);
                if ((channel += BK) < c) return;
                channel = 0;
                if (++j == s) j = 0, ++i;
            });
        });
    } else {
        registers_up<consumer_registers>();
        const int first = (threadIdx.x / 128 - 1) * 64;
        float sum[1][BN / 2];
        scheduler.for_each_tile([&](TilePlace tile) {
#if PLANES == 2
            drain_planes<false, row_bytes>(ring, steps, first, sum[0]);
#else
            const auto last_channels = [&](int step, unsigned a) {
                multiply_stage<Format::f16, false, row_bytes, SLICES>(sum, a + first * row_bytes, a + rows_bytes,
                                                                      step > 0);
            };
#if PAIRS
            const auto whole = [&](int step, unsigned a) {
                multiply_stage<Format::f16, false, row_bytes>(sum, a + first * row_bytes, a + rows_bytes, step > 0);
            };
            ring.drain_pairs(steps, whole, last_channels);
#else
            ring.drain(steps, last_channels);
#endif
#endif
            scale_columns(sum[0], *image_exponent, filter_exponents, tile.column, k);
#if BIAS
            add_bias<RELU>(sum[0], bias, tile.column, k);
#endif
            store_pairs(sum[0], out, tile.row + first + threadIdx.x / 32 % 4 * 16, tile.column, pixels, k);
        });
    }
}

// The image's largest magnitude; by the blocks of z = 1 the filters' planes.
extern "C" __global__ void __launch_bounds__(256, 4)
    conv2d_find_image_split_filters(const float* __restrict__ image, unsigned* __restrict__ largest,
                                    const float* __restrict__ weight, __half* __restrict__ planes,
                                    int* __restrict__ exponents, int n, int h, int row, int k, int depth) {
    if (blockIdx.z == 0)
        find_largest(image, largest, (long long)n * h * row);
    else
        split_rows<PLANES>(weight, planes, exponents, k, depth, depth);
}
extern "C" __global__ void __launch_bounds__(256)
    conv2d_split_image(const float* __restrict__ image, const unsigned* __restrict__ largest,
                       __half* __restrict__ planes, int* __restrict__ exponent, int n, int h, int row) {
    split_all<PLANES>(image, largest, planes, exponent, (long long)n * h * row);
}
