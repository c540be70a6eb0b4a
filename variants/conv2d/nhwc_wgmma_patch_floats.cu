// /// opbench
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "compile_time_sizes",
//     "fused", "double_buffer", "tma", "tensor_core", "warp_specialised", "persistent",
// ]
// tile      = { patch_height = "HEIGHT", patch_width = 8 }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"] }
// requires  = [
//     "stride == 1 and r <= 7 and s <= 7 and padding <= 16 and r * s > 1 and c % 8 == 0", "RING >= 2",
//     "n * cdiv(p, HEIGHT) * cdiv(q, 8) * cdiv(k, 64) * cdiv(c, 64) * r * s < 2 ** 31",
// ]
// compute_capability = "9.0a"
//
// [define]
// PLANES   = "2 if PRODUCT == 'f16x3' else 1"
// HEIGHT   = "32 if PLANES == 1 and r <= 3 else 16"
// FILTER_R = "r"
// FILTER_S = "s"
// PIXELS   = "(HEIGHT + r - 1) * (7 + s)"
// ROOM     = "cdiv(PIXELS, 8) * 1024 * PLANES"
// RING     = "min(8, (232448 - 1024 - 2 * ROOM - 256 * PIXELS) // (8192 * PLANES))"
// BIAS     = "epilogue != 'none'"
// RELU     = "epilogue == 'bias_relu'"
//
// [workspace]
// filter_planes    = "k * r * s * c // 2 * PLANES"
// filter_exponents = "k"
//
// [tensor_maps]
// map_image  = { tensor = "image", box = [64, "7 + s", "HEIGHT + r - 1", 1], swizzle = "none" }
// map_filter = { tensor = "filter_planes", type = "f16", dims = ["c", "r * s", "k", "PLANES"], box = [64, 1, 64, 1] }
//
// [[launch]]
// kernel = "conv2d_split_filters"
// grid   = ["min(1056, k)"]
// block  = [256]
// args   = ["weight", "filter_planes", "filter_exponents", "k", "r * s * c"]
// setup  = true
//
// [[launch]]
// kernel = "conv2d_nhwc_wgmma_patch_floats"
// grid   = ["min(sm_count, n * cdiv(p, HEIGHT) * cdiv(q, 8) * cdiv(k, 64))"]
// block  = [384]
// shared = "RING * 8192 * PLANES + 2 * ROOM + 256 * PIXELS + 16 * (3 + RING) + 64"
// args   = ["map_image", "map_filter", "filter_exponents", "bias?", "out", "n", "p", "q", "k", "c", "padding"]
//
// [variant.nhwc_wgmma_patch_halves]
// title     = "nhwc_wgmma_patch_f16 without separate kernels: warps round each patch while others multiply"
// builds_on = "nhwc_wgmma_patch_f16"
// product   = "f16"
// precision = "tf32"
//
// [variant.nhwc_wgmma_patch_floats]
// title     = "nhwc_wgmma_patch_planes without separate kernels: warps split each patch while others multiply"
// builds_on = "nhwc_wgmma_patch_planes"
// mechanism = ["operand_split"]
// product   = "f16x3"
// ///
//
// This is nhwc_wgmma_patch_planes without its passes over the image. Those passes move the image three times more and,
// if channels are few and images large, take as long as the products. Here patches arrive as floats. While other planes
// are multiplied, three warps find the largest magnitude in 64 channels of a patch and write its planes; this takes a
// sixth of the time of three products, or nearly half of the time of one. With two planes, the sums of each filter
// position are added in float anyway, and are divided by the patch's power of two there. With one plane, one sum covers
// all channels and is rescaled when the power falls. Limit: the tensor cores, and shared memory, which the splitting
// also uses; the units are idle once per 64 channels.

#include <opbench/patch_sums.cuh>
#include <opbench/ring.cuh>
#include <opbench/split_patch.cuh>
using namespace opbench;

typedef SplitPatch<HEIGHT, FILTER_R, FILTER_S, RING, false, PLANES> Work;

// image [n][h][w][c], filter_planes [PLANES][k][r][s][c], bias [k], out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv2d_nhwc_wgmma_patch_floats(const __grid_constant__ TensorMap map_image,
                                   const __grid_constant__ TensorMap map_filter,
                                   const int* __restrict__ filter_exponents,
#if BIAS
                                   const float* __restrict__ bias,
#endif
                                   float* __restrict__ out, int n, int p, int q, int k, int c, int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Work work(shared, n, p, q, k, c);
    if (threadIdx.x == 0) work.init();
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<Work::copier_registers>();
        if (threadIdx.x == 0)
            work.copy_filters([&](unsigned to, unsigned full, int slice, int position, int filter, int plane) {
                load(to, &map_filter, full, slice * 64, position, filter, plane);
            });
        else if (threadIdx.x >= 32)
            work.split_patches([&](unsigned to, unsigned full, int slice, PatchPlace at) {
                load(to, &map_image, full, slice * 64, at.x - padding, at.y - padding, at.image);
            });
    } else {
        registers_up<Work::consumer_registers>();
        work.work([&](Work::Sums& sum, const PatchPlace& at) {
            scale_filters(sum, 0, filter_exponents, at.filter, k);
#if BIAS
            add_filter_bias<RELU>(sum, bias, at.filter, k);
#endif
            each_pixel(sum, at, p, q, k, [&](float x, size_t to) { out[to] = x; });
        });
    }
}

extern "C" __global__ void __launch_bounds__(256)
    conv2d_split_filters(const float* __restrict__ weight, __half* __restrict__ planes, int* __restrict__ exponents,
                         int k, int depth) {
    split_rows<PLANES>(weight, planes, exponents, k, depth, depth);
}
