// /// opbench
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core",
//     "warp_specialised", "persistent", "converted_ahead",
// ]
// tile      = { m = "BM", n = "BN" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "add", "mask"] }
// requires  = [
//     "stride == 1 and padding < r and padding < s and r <= 16 and s <= 16", "c % 8 == 0 and k % 8 == 0",
//     "n * h * w + 512 < 2 ** 31", "max(n * p * q, r * s * c) * k < 2 ** 31",
// ]
// compute_capability = "9.0a"
//
// [define]
// EPILOGUE = "'plain' if epilogue == 'none' else epilogue"
// OTHER    = "epilogue != 'none'"
// GROUP    = "8"
//
// [workspace]
// dout_planes       = "n * p * q * k // 2 * PLANES"
// filter_planes     = "k * r * s * c // 2 * PLANES"
// dout_exponent     = "4"
// channel_exponents = "c"
// largest           = "4 + c"
//
// [tensor_maps.map_dout]
// tensor = "dout_planes"
// type   = "f16"
// dims   = ["k", "q", "p", "PLANES * n"]
//
// [tensor_maps.map_dout.im2col]
// lower    = ["padding - s + 1", "padding - r + 1"]
// upper    = ["-padding", "-padding"]
// channels = 64
// pixels   = "BM"
//
// [tensor_maps.map_filter]
// tensor = "filter_planes"
// type   = "f16"
// dims   = ["c", "r * s", "k", "PLANES"]
// box    = [64, 1, 64, 1]
//
// [[launch]]
// zero = "largest"
//
// [[launch]]
// kernel = "conv2d_dgrad_find"
// grid   = ["cdiv(c, 1024)", "min(528, cdiv(max(n * p * q * k, k * r * s * c), 4096))", 2]
// block  = [256]
// args   = ["dout", "weight", "largest", "n", "p * q * k", "k * r * s", "c"]
//
// [[launch]]
// kernel = "conv2d_dgrad_split"
// grid   = ["cdiv(c, 1024)", "min(1056, cdiv(max(n * p * q * k, k * r * s * c), 4096))", 2]
// block  = [256]
// args   = [
//     "dout", "weight", "largest", "dout_planes", "filter_planes", "dout_exponent", "channel_exponents", "n",
//     "p * q * k", "k * r * s", "c",
// ]
//
// [[launch]]
// kernel = "conv2d_dgrad_nhwc_wgmma_planes"
// grid   = ["min(sm_count, cdiv(n * h * w, BM) * cdiv(c, BN))"]
// block  = [384]
// shared = "STAGES * ((BM + ROOM) * 128 * PLANES + 16)"
// args   = [
//     "map_dout", "map_filter", "dout_exponent", "channel_exponents", "skip?", "out?", "dimage", "n", "h", "w", "c",
//     "k", "r", "s", "padding",
// ]
//
// [variant.nhwc_wgmma_f16]
// title     = "TF32 accuracy by f16 wgmma, im2col mode over dout: separate kernels round and scale the operands"
// builds_on = "nhwc_wgmma_tf32"
// product   = "f16"
// precision = "tf32"
// tune      = { BM = [128], BN = [128, 192, 96, 64] }
// define    = { PLANES = "1", ROOM = "cdiv(BN, 64) * 64", STAGES = "196608 // ((BM + ROOM) * 128)" }
//
// [variant.nhwc_wgmma_planes]
// title     = "wgmma with float32 accuracy, im2col mode over dout: operands split into two f16 parts"
// builds_on = "nhwc_wgmma_f16"
// mechanism = ["operand_split"]
// product   = "f16x3"
// tune      = { BM = [128], BN = [128, 96] }
// define    = { PLANES = "2", ROOM = "cdiv(BN, 64) * 64", STAGES = "3" }
// ///
//
// conv2d/nhwc_wgmma_planes for dout, with filter positions in reverse order and filters in their stored order, and a
// power of two per channel. It is meant for sizes for which nhwc_wgmma_patch_planes wastes much of its patches, such as
// images of 12 x 12 and 26 x 26 pixels; with 96 channels, no column of a tile is empty. Limit: that of
// conv2d/nhwc_wgmma_planes.

#include <opbench/gradients.cuh>
#include <opbench/hi_lo_split.cuh>
#include <opbench/ring.cuh>
using namespace opbench;

constexpr int rows_bytes = BM * 128;  // bytes of one plane
typedef Ring<STAGES, (BM + ROOM) * 128 * PLANES> Stages;
typedef Tiles<BM, BN, GROUP> TileScheduler;

// dout_planes [PLANES][n][p][q][k], filter_planes [PLANES][k][r][s][c], other and dimage [n][h][w][c]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv2d_dgrad_nhwc_wgmma_planes(const __grid_constant__ TensorMap map_dout,
                                   const __grid_constant__ TensorMap map_filter, const int* __restrict__ dout_exponent,
                                   const int* __restrict__ channel_exponents,
#if OTHER
                                   const float* __restrict__ other,
#endif
                                   float* __restrict__ dimage, int n, int h, int w, int c, int k, int r, int s,
                                   int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared);
    Stages ring(memory, memory + Stages::bytes);
    const int pixels = n * h * w, steps = r * s * ((k + 63) / 64);
    const TileScheduler scheduler(pixels, c);
    if (threadIdx.x == 0) ring.init();
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x > 0) return;
        scheduler.for_each_tile([&](TilePlace tile) {
            const int image = tile.row / (h * w), pixel = tile.row % (h * w);
            const int x = pixel % w - (s - 1 - padding), y = pixel / w - (r - 1 - padding);
            int filter = 0, i = 0, j = 0;  // position in the rotated filter
            ring.fill(steps, [&](int, unsigned a, unsigned full) {
                const int position = r * s - 1 - (i * s + j);
                for (int plane = 0; plane < PLANES; ++plane) {
                    const unsigned b = a + PLANES * rows_bytes + plane * ROOM * 128;
                    load_windows(a + plane * rows_bytes, &map_dout, full, filter, x, y, image + plane * n, j, i);
                    for (int part = 0; part < BN; part += 64)
                        load(b + part * 128, &map_filter, full, tile.column + part, position, filter, plane);
                }
                if ((filter += 64) < k) return;
                filter = 0;
                if (++j == s) j = 0, ++i;
            });
        });
    } else {
        registers_up<consumer_registers>();
        const int first = (threadIdx.x / 128 - 1) * 64;
        float sum[1][BN / 2];
        scheduler.for_each_tile([&](TilePlace tile) {
#if PLANES == 2
            drain_planes<true>(ring, steps, first, sum[0]);
#else
            ring.drain(steps, [&](int step, unsigned a) {
                multiply_stage<Format::f16, true>(sum, a + first * 128, a + rows_bytes, step > 0);
            });
#endif
            const int row = tile.row + first + threadIdx.x / 32 % 4 * 16;
            scale_columns(sum[0], *dout_exponent, channel_exponents, tile.column, c);
#if OTHER
            combine_pairs(sum[0], other, row, tile.column, pixels, c, finished<EPILOGUE>);
#endif
            store_pairs(sum[0], dimage, row, tile.column, pixels, c);
        });
    }
}

// Find the largest magnitude of dout; the blocks of z = 1 find that of each channel of the filters, [rows][c].
extern "C" __global__ void __launch_bounds__(256)
    conv2d_dgrad_find(const float* __restrict__ dout, const float* __restrict__ weight, unsigned* __restrict__ largest,
                      int n, int of_dout, int rows, int c) {
    if (blockIdx.z == 0)
        find_largest(dout, largest, (long long)n * of_dout);
    else
        find_columns(weight, largest + 4, rows, c);
}
extern "C" __global__ void __launch_bounds__(256)
    conv2d_dgrad_split(const float* __restrict__ dout, const float* __restrict__ weight,
                       const unsigned* __restrict__ largest, __half* __restrict__ dout_planes,
                       __half* __restrict__ filter_planes, int* __restrict__ dout_exponent, int* __restrict__ exponents,
                       int n, int of_dout, int rows, int c) {
    if (blockIdx.z == 0)
        split_all<PLANES>(dout, largest, dout_planes, dout_exponent, (long long)n * of_dout);
    else
        split_columns<PLANES>(weight, largest + 4, filter_planes, exponents, rows, c, c);
}
