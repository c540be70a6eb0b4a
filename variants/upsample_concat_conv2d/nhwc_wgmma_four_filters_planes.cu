// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "bank_conflict_free", "fewer_operations", "double_buffer", "tma",
//     "tensor_core", "warp_specialised", "persistent", "converted_ahead",
// ]
// tile      = { m = "BM", n = "BN" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"] }
// requires  = [
//     "r == 3 and s == 3 and padding == 1", "4 * (k + BN) * (9 * c2 + 4 * c1 + 64) < 2 ** 31",
//     "4 * PLANES * n * h * w < 2 ** 31", "c1 % 8 == 0 and c2 % 8 == 0 and k % 2 == 0",
// ]
// compute_capability = "9.0a"
// flops     = "8 * n * h * w * k * (9 * c2 + 4 * c1)"
//
// [define]
// STAGES = "196608 // (PLANES * (BM + BN) * 128)"
// DEPTH  = "9 * c2 + 4 * c1"
// TILES  = "n * cdiv(h, 16) * cdiv(w, 8) * 4 * cdiv(k, BN)"
// BIAS   = "epilogue != 'none'"
// RELU   = "epilogue == 'bias_relu'"
//
// [workspace]
// low_planes       = "n * h * w * c1 // 2 * PLANES"
// skip_planes      = "n * h * w * c2 * 2 * PLANES"
// filters          = "4 * k * DEPTH"
// filter_planes    = "2 * k * DEPTH * PLANES"
// filter_exponents = "4 * k"
// images_exponent  = "4"
// images_largest   = "4"
//
// [tensor_maps]
// map_low  = { tensor = "low_planes", type = "f16", dims = ["c1", "w", "h", "PLANES * n"], box = [64, 8, 16, 1] }
//
// [tensor_maps.map_skip]
// tensor          = "skip_planes"
// type            = "f16"
// dims            = ["c2", "2 * w", "2 * h", "PLANES * n"]
// element_strides = [1, 2, 2, 1]
// box             = [64, 16, 32, 1]
//
// [tensor_maps.map_of_skip]
// tensor  = "filter_planes"
// type    = "f16"
// dims    = ["c2", 9, "4 * k", "PLANES"]
// strides = ["2 * c2", "2 * DEPTH", "8 * k * DEPTH"]
// box     = [64, 1, "BN", "PLANES"]
//
// [tensor_maps.map_of_low]
// tensor  = "filter_planes"
// type    = "f16"
// offset  = "9 * c2"
// dims    = ["c1", 4, "4 * k", "PLANES"]
// strides = ["2 * c1", "2 * DEPTH", "8 * k * DEPTH"]
// box     = [64, 1, "BN", "PLANES"]
//
// [[launch]]
// kernel = "upsample_concat_conv2d_sum_filters"
// grid   = ["cdiv(4 * k * DEPTH, 256)"]
// block  = [256]
// args   = ["weight", "filters", "k", "c1", "c2"]
// setup  = true
//
// [[launch]]
// kernel = "upsample_concat_conv2d_split_filters"
// grid   = ["min(1056, 4 * k)"]
// block  = [256]
// args   = ["filters", "filter_planes", "filter_exponents", "k", "c1", "c2"]
// setup  = true
//
// [[launch]]
// zero = "images_largest"
//
// [[launch]]
// kernel = "upsample_concat_conv2d_find_images"
// grid   = ["min(1056, cdiv(n * h * w * max(c1, 4 * c2), 4096))", 1, 2]
// block  = [256]
// args   = ["low", "skip", "images_largest", "n * h * w", "c1", "c2"]
//
// [[launch]]
// kernel = "upsample_concat_conv2d_split_images"
// grid   = ["min(1056, cdiv(n * h * w * max(c1, 4 * c2), 4096))", 1, 2]
// block  = [256]
// args   = ["low", "skip", "images_largest", "low_planes", "skip_planes", "images_exponent", "n * h * w", "c1", "c2"]
//
// [[launch]]
// kernel = "upsample_concat_conv2d_nhwc_wgmma_four_filters_planes"
// grid   = ["min(sm_count, TILES)"]
// block  = [384]
// shared = "STAGES * (PLANES * (BM + BN) * 128 + 16)"
// args   = [
//     "map_low", "map_skip", "map_of_low", "map_of_skip", "images_exponent", "filter_exponents", "bias?", "out", "n",
//     "c1", "c2", "h", "w", "k",
// ]
//
// [variant.nhwc_wgmma_four_filters_f16]
// title     = "TF32 accuracy by f16 wgmma at twice the rate: separate kernels round and scale images and filters"
// builds_on = "nhwc_wgmma_four_filters_tf32"
// product   = "f16"
// precision = "tf32"
// define    = { PLANES = "1" }
// tune      = { BM = [128], BN = [128, 256, 64] }
//
// [variant.nhwc_wgmma_four_filters_planes]
// title     = "wgmma with float32 accuracy: filters and images split into two f16 parts, three products"
// builds_on = "nhwc_wgmma_four_filters_f16"
// mechanism = ["vectorised_access", "operand_split"]
// product   = "f16x3"
// define    = { PLANES = "2" }
// tune      = { BM = [128], BN = [128, 64] }
// ///
//
// The tiles of nhwc_wgmma_four_filters with the f16 planes of matmul/wgmma_planes (its file explains why f16, and why
// sums start from zero at each step). If c1 = 2 c2, 17 of 27 products are left, each of them three f16 products with
// two planes. Filters are summed in float32 before they are split, and each filter has a power of two. Both images
// share one, that of the larger magnitude, so that one sum can contain products of both. Limit: the passes over the
// images, to find the largest magnitude and to split them; kernels that write the images could do both. The passes over
// the filters are separate launches, because a network whose weights do not change needs them only once.

#include <opbench/stride2_loader.cuh>
#include <opbench/stride2_tiles.cuh>
#include <opbench/hi_lo_split.cuh>
#include <opbench/ring.cuh>
using namespace opbench;

constexpr int pixels_plane = BM * 128, filters_plane = BN * 128;  // bytes of one plane of a stage
typedef Ring<STAGES, PLANES*(pixels_plane + filters_plane)> Stages;
typedef ParityTiles<BM, BN, 64> TileScheduler;

// weight [k][3][3][c2 + c1], filters [4][k][9 c2 + 4 c1]
extern "C" __global__ void __launch_bounds__(256)
    upsample_concat_conv2d_sum_filters(const float* __restrict__ weight, float* __restrict__ filters, int k, int c1,
                                       int c2) {
    const int at = blockIdx.x * 256 + threadIdx.x;
    if (at < 4 * k * DEPTH) filters[at] = summed_filter(weight, at, k, c1, c2);
}
extern "C" __global__ void __launch_bounds__(256)
    upsample_concat_conv2d_split_filters(const float* __restrict__ filters, __half* __restrict__ planes,
                                         int* __restrict__ exponents, int k, int c1, int c2) {
    split_rows<PLANES>(filters, planes, exponents, 4 * k, DEPTH, DEPTH);
}

// low [n][h][w][c1], skip [n][2h][2w][c2]: blockIdx.z selects the image whose largest magnitude is found, and then the
// image that is split.
extern "C" __global__ void __launch_bounds__(256)
    upsample_concat_conv2d_find_images(const float* __restrict__ low, const float* __restrict__ skip,
                                       unsigned* __restrict__ largest, int pixels, int c1, int c2) {
    find_largest(blockIdx.z ? skip : low, largest, (long long)pixels * (blockIdx.z ? 4 * c2 : c1));
}
extern "C" __global__ void __launch_bounds__(256)
    upsample_concat_conv2d_split_images(const float* __restrict__ low, const float* __restrict__ skip,
                                        const unsigned* __restrict__ largest, __half* __restrict__ low_planes,
                                        __half* __restrict__ skip_planes, int* __restrict__ images_exponent, int pixels,
                                        int c1, int c2) {
    if (blockIdx.z == 0)
        split_all<PLANES>(low, largest, low_planes, images_exponent, (long long)pixels * c1);
    else
        split_all<PLANES>(skip, largest, skip_planes, images_exponent + 1, (long long)pixels * 4 * c2);
}

#if PLANES == 2
// As scale_columns, for an even number of columns: it loads two exponents at once, because with 192 sums in registers,
// single loads would spill.
__device__ __forceinline__ void scale_pairs(float (&d)[BN / 2], int common, const int* exponents, int column,
                                            int columns) {
    const int first = column + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < BN / 8; ++j) {
        const int2 e = *reinterpret_cast<const int2*>(exponents + min(first + j * 8, columns - 2));
#pragma unroll
        for (int i = 0; i < 4; ++i) d[j * 4 + i] = scaled(d[j * 4 + i], common + (i % 2 ? e.y : e.x));
    }
}
#endif

extern "C" __global__ void __launch_bounds__(ring_threads, 1) upsample_concat_conv2d_nhwc_wgmma_four_filters_planes(
    const __grid_constant__ TensorMap map_low, const __grid_constant__ TensorMap map_skip,
    const __grid_constant__ TensorMap map_of_low, const __grid_constant__ TensorMap map_of_skip,
    const int* __restrict__ images_exponent, const int* __restrict__ filter_exponents,
#if BIAS
    const float* __restrict__ bias,
#endif
    float* __restrict__ out, int n, int c1, int c2, int h, int w, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared);
    Stages ring(memory, memory + Stages::bytes);
    const TileScheduler scheduler(n, c1, c2, h, w, k);
    if (threadIdx.x == 0) ring.init();
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x > 0) return;
        scheduler.for_each_tile([&](int index) {
            const ParityPlace at = scheduler[index];
            ParityStep next;
            ring.fill(scheduler.steps, [&](int step, unsigned a, unsigned full) {
                next.copy(
                    scheduler, at, step,
                    [&](bool in_skip, int channel, int x, int y) {
                        for (int plane = 0; plane < PLANES; ++plane)
                            load(a + plane * pixels_plane, in_skip ? &map_skip : &map_low, full, channel, x, y,
                                 at.image + plane * n);
                    },
                    [&](bool in_skip, int channel, int position) {
                        load(a + PLANES * pixels_plane, in_skip ? &map_of_skip : &map_of_low, full, channel, position,
                             at.parity() * k + at.column, 0);
                    });
            });
        });
    } else {
        registers_up<consumer_registers>();
        const int first = (threadIdx.x / 128 - 1) * 64;
        float sum[1][BN / 2];
        scheduler.for_each_tile([&](int index) {
#if PLANES == 2
            drain_planes<false>(ring, scheduler.steps, first, sum[0]);
#else
            ring.drain(scheduler.steps, [&](int step, unsigned stage) {
                multiply_stage<Format::f16>(sum, stage + first * 128, stage + pixels_plane, step > 0);
            });
#endif
            const ParityPlace at = scheduler[index];
#if PLANES == 2
            scale_pairs(sum[0], *images_exponent, filter_exponents + at.parity() * k, at.column, k);
#else
            scale_columns(sum[0], *images_exponent, filter_exponents + at.parity() * k, at.column, k);
#endif
#if BIAS
            add_bias<RELU>(sum[0], bias, at.column, k);
#endif
            store_parity(sum[0], out, scheduler, at, at.y / 2 + (first + threadIdx.x / 32 % 4 * 16) / 8);
        });
    }
}
