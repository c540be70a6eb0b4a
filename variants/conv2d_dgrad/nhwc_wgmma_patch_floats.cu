// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "bank_conflict_free", "compile_time_sizes", "fused", "double_buffer",
//     "tma", "tensor_core", "warp_specialised", "persistent",
// ]
// tile      = { patch_height = "HEIGHT", patch_width = 8 }
// supports  = { layout = ["nhwc"], epilogue = ["none", "add", "mask"] }
// requires  = [
//     "stride == 1 and padding < r and padding < s and r <= 7 and s <= 7 and r * s > 1",
//     "c % 8 == 0 and k % 4 == 0",
//     "RING >= 2",
//     "n * cdiv(h, HEIGHT) * cdiv(w, 8) * cdiv(c, 64) * cdiv(k, 64) * r * s < 2 ** 31",
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
// EPILOGUE = "'plain' if epilogue == 'none' else epilogue"
// OTHER    = "epilogue != 'none'"
//
// [workspace]
// filter_planes     = "k * r * s * c // 2 * PLANES"
// channel_exponents = "c"
// largest           = "c"
//
// [tensor_maps]
// map_dout   = { tensor = "dout", box = [64, "7 + s", "HEIGHT + r - 1", 1], swizzle = "none" }
// map_filter = { tensor = "filter_planes", type = "f16", dims = ["c", "r * s", "k", "PLANES"], box = [64, 1, 64, 1] }
//
// [[launch]]
// zero = "largest"
//
// [[launch]]
// kernel = "conv2d_dgrad_find"
// grid   = ["cdiv(c, 1024)", "min(264, cdiv(k * r * s * c, 4096))"]
// block  = [256]
// args   = ["weight", "largest", "k * r * s", "c"]
//
// [[launch]]
// kernel = "conv2d_dgrad_split"
// grid   = ["cdiv(c, 1024)", "min(528, cdiv(k * r * s * c, 4096))"]
// block  = [256]
// args   = ["weight", "largest", "filter_planes", "channel_exponents", "k * r * s", "c"]
//
// [[launch]]
// kernel = "conv2d_dgrad_nhwc_wgmma_patch_floats"
// grid   = ["min(sm_count, n * cdiv(h, HEIGHT) * cdiv(w, 8) * cdiv(c, 64))"]
// block  = [384]
// shared = "RING * 8192 * PLANES + 2 * ROOM + 256 * PIXELS + 16 * (3 + RING) + 64"
// args   = [
//     "map_dout", "map_filter", "channel_exponents", "skip?", "out?", "dimage", "n", "h", "w", "c", "k", "padding",
// ]
//
// [variant.nhwc_wgmma_patch_halves]
// title     = "nhwc_wgmma_patch_f16 without separate kernels: warps round each patch of dout while others multiply"
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
// As conv2d/nhwc_wgmma_patch_floats, but for dout, with filter positions in reverse order and filters in their stored
// order. There are no passes over dout any more; the passes over the filters stay. Limit: that of
// conv2d/nhwc_wgmma_patch_floats.

#include <opbench/gradients.cuh>
#include <opbench/patch_sums.cuh>
#include <opbench/ring.cuh>
#include <opbench/split_patch.cuh>
using namespace opbench;

typedef SplitPatch<HEIGHT, FILTER_R, FILTER_S, RING, true, PLANES> Work;

// dout [n][p][q][k], filter_planes [PLANES][k][r][s][c], other and dimage [n][h][w][c]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv2d_dgrad_nhwc_wgmma_patch_floats(const __grid_constant__ TensorMap map_dout,
                                         const __grid_constant__ TensorMap map_filter,
                                         const int* __restrict__ channel_exponents,
#if OTHER
                                         const float* __restrict__ other,
#endif
                                         float* __restrict__ dimage, int n, int h, int w, int c, int k, int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Work work(shared, n, h, w, c, k);
    if (threadIdx.x == 0) work.init();
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<Work::copier_registers>();
        if (threadIdx.x == 0)
            work.copy_filters([&](unsigned to, unsigned full, int slice, int position, int channel, int plane) {
                load(to, &map_filter, full, channel, FILTER_R * FILTER_S - 1 - position, slice * 64, plane);
            });
        else if (threadIdx.x >= 32)
            work.split_patches([&](unsigned to, unsigned full, int slice, PatchPlace at) {
                const int left = FILTER_S - 1 - padding, above = FILTER_R - 1 - padding;
                load(to, &map_dout, full, slice * 64, at.x - left, at.y - above, at.image);
            });
    } else {
        registers_up<Work::consumer_registers>();
        work.work([&](Work::Sums& sum, const PatchPlace& at) {
            scale_filters(sum, 0, channel_exponents, at.filter, c);
            each_pixel(sum, at, h, w, c, [&](float x, size_t to) {
#if OTHER
                x = finished<EPILOGUE>(x, other[to]);
#endif
                dimage[to] = x;
            });
        });
    }
}

// Find the largest magnitude of each channel of the filters, [rows][c].
extern "C" __global__ void __launch_bounds__(256)
    conv2d_dgrad_find(const float* __restrict__ weight, unsigned* __restrict__ largest, int rows, int c) {
    find_columns(weight, largest, rows, c);
}
extern "C" __global__ void __launch_bounds__(256)
    conv2d_dgrad_split(const float* __restrict__ weight, const unsigned* __restrict__ largest,
                       __half* __restrict__ filter_planes, int* __restrict__ exponents, int rows, int c) {
    split_columns<PLANES>(weight, largest, filter_planes, exponents, rows, c, c);
}
