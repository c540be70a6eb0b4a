// /// opbench
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "compile_time_sizes",
//     "double_buffer", "tma", "tensor_core", "warp_specialised", "persistent", "converted_ahead",
// ]
// tile      = { patch_height = "HEIGHT", patch_width = 8 }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"] }
// requires  = [
//     "stride == 1 and r <= 7 and s <= 7 and padding <= 16 and r * s > 1 and c % 8 == 0", "RING >= 2",
//     "n * cdiv(p, 16) * cdiv(q, 8) * cdiv(k, 64) * cdiv(c, 64) * r * s < 2 ** 31",
// ]
// compute_capability = "9.0a"
//
// [define]
// HEIGHT   = "16 if PLANES == 2 else 32"
// FILTER_R = "r"
// FILTER_S = "s"
// ROOM     = "PLANES * cdiv((HEIGHT + r - 1) * (7 + s), 8) * 1024"
// RING     = "min(8, (230400 - 2 * ROOM) // (8192 * PLANES))"
// BIAS     = "epilogue != 'none'"
// RELU     = "epilogue == 'bias_relu'"
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
// box    = [64, "7 + s", "HEIGHT + r - 1", 1]
//
// [tensor_maps.map_filter]
// tensor = "filter_planes"
// type   = "f16"
// dims   = ["c", "r * s", "k", "PLANES"]
// box    = [64, 1, 64, 1]
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
// kernel = "conv2d_nhwc_wgmma_patch_planes"
// grid   = ["min(sm_count, n * cdiv(p, HEIGHT) * cdiv(q, 8) * cdiv(k, 64))"]
// block  = [384]
// shared = "RING * 8192 * PLANES + 2 * ROOM + 16 * (3 + RING)"
// args   = [
//     "map_image", "map_filter", "image_exponent", "filter_exponents", "bias?", "out", "n", "p", "q", "k", "c",
//     "padding",
// ]
//
// [variant.nhwc_wgmma_patch_planes]
// title     = "nhwc_wgmma_patch with float32 accuracy: operands split into two f16 parts, three products"
// builds_on = "nhwc_wgmma_patch_f16"
// mechanism = ["operand_split"]
// product   = "f16x3"
// define    = { PLANES = "2" }
//
// [variant.nhwc_wgmma_patch_f16]
// title     = "nhwc_wgmma_patch with TF32 accuracy by f16: separate kernels round and scale image and filters"
// builds_on = "nhwc_wgmma_patch_tf32"
// product   = "f16"
// precision = "tf32"
// define    = { PLANES = "1" }
// ///
//
// The patches of nhwc_wgmma_patch in f16. One f16 number has as many significant bits as TF32 and, scaled by a power of
// two, a range of 39 binades, at twice the rate of TF32. Two f16 numbers (planes) have 22 significant bits: three
// products as in matmul/wgmma_planes, which explains why f16. The sums of the high parts start from zero at each filter
// position, and are added in float while the products with low parts run. Each filter has its own power of two. An
// image has one power of two for all of its elements, because one row of the product uses many pixels. The error with
// two planes is a third of the error of cuDNN's float32, at six times the rate. Limit: 192 sums per thread, so a patch
// is 16 x 8 pixels with two planes; and two passes over the image, to find its largest magnitude and to split it. (A
// kernel that writes the image could do both.) For a large image with few channels, they cost more time than f16 saves.

#include <opbench/patch_sums.cuh>
#include <opbench/hi_lo_split.cuh>
#include <opbench/ring.cuh>
using namespace opbench;

typedef Patch<Format::f16, HEIGHT, FILTER_R, FILTER_S, 2, 0, RING, false, PLANES> Work;

// image_planes [PLANES][n][h][w][c], filter_planes [PLANES][k][r][s][c], bias [k], out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv2d_nhwc_wgmma_patch_planes(const __grid_constant__ TensorMap map_image,
                                   const __grid_constant__ TensorMap map_filter, const int* __restrict__ image_exponent,
                                   const int* __restrict__ filter_exponents,
#if BIAS
                                   const float* __restrict__ bias,
#endif
                                   float* __restrict__ out, int n, int p, int q, int k, int c, int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared);
    const Work work(memory, memory + Work::bytes, n, p, q, k, c);
    if (threadIdx.x == 0) work.init();
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0)
            work.copy_patches([&](unsigned to, unsigned full, int slice, PatchPlace at, int plane) {
                load(to, &map_image, full, slice * 64, at.x - padding, at.y - padding, at.image + plane * n);
            });
        else if (threadIdx.x == 32)
            work.copy_filters([&](unsigned to, unsigned full, int slice, int position, int filter, int plane) {
                load(to, &map_filter, full, slice * 64, position, filter, plane);
            });
    } else {
        registers_up<consumer_registers>();
        work.work([&](Work::Sums& sum, const PatchPlace& at) {
            scale_filters(sum, *image_exponent, filter_exponents, at.filter, k);
#if BIAS
            add_filter_bias<RELU>(sum, bias, at.filter, k);
#endif
            each_pixel(sum, at, p, q, k, [&](float x, size_t to) { out[to] = x; });
        });
    }
}

// Find the image's largest magnitude; the blocks of z = 1 split the filters into planes.
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
