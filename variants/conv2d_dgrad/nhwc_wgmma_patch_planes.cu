// /// opbench
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "compile_time_sizes",
//     "double_buffer", "tma", "tensor_core", "warp_specialised", "persistent", "converted_ahead",
// ]
// tile      = { patch_height = "HEIGHT", patch_width = 8 }
// supports  = { layout = ["nhwc"], epilogue = ["none", "add", "mask"] }
// requires  = [
//     "stride == 1 and padding < r and padding < s and r <= 7 and s <= 7 and r * s > 1",
//     "c % 8 == 0 and k % 8 == 0",
//     "RING >= 2",
//     "n * cdiv(h, 16) * cdiv(w, 8) * cdiv(c, 64) * cdiv(k, 64) * r * s < 2 ** 31",
//     "p * q * k < 2 ** 31",
// ]
// compute_capability = "9.0a"
//
// [define]
// HEIGHT   = "16 if PLANES == 2 else 32"
// FILTER_R = "r"
// FILTER_S = "s"
// ROOM     = "PLANES * cdiv((HEIGHT + r - 1) * (7 + s), 8) * 1024"
// RING     = "min(8, (230400 - 2 * ROOM) // (8192 * PLANES))"
// EPILOGUE = "'plain' if epilogue == 'none' else epilogue"
// OTHER    = "epilogue != 'none'"
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
// box    = [64, "7 + s", "HEIGHT + r - 1", 1]
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
// kernel = "conv2d_dgrad_nhwc_wgmma_patch_planes"
// grid   = ["min(sm_count, n * cdiv(h, HEIGHT) * cdiv(w, 8) * cdiv(c, 64))"]
// block  = [384]
// shared = "RING * 8192 * PLANES + 2 * ROOM + 16 * (3 + RING)"
// args   = [
//     "map_dout", "map_filter", "dout_exponent", "channel_exponents", "skip?", "out?", "dimage", "n", "h", "w", "c",
//     "k", "padding",
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
// title     = "nhwc_wgmma_patch with TF32 accuracy by f16: separate kernels round and scale dout and filters"
// builds_on = "nhwc_wgmma_patch_tf32"
// product   = "f16"
// precision = "tf32"
// define    = { PLANES = "1" }
// ///
//
// As conv2d/nhwc_wgmma_patch_planes, but for dout, with filter positions in reverse order. Filters are read in their
// stored order, which wgmma allows for 16-bit elements. A power of two can only belong to an axis that is not summed,
// so here each channel has one. Limit: that of conv2d/nhwc_wgmma_patch_planes, and the passes over dout.

#include <opbench/gradients.cuh>
#include <opbench/patch_sums.cuh>
#include <opbench/hi_lo_split.cuh>
#include <opbench/ring.cuh>
using namespace opbench;

typedef Patch<Format::f16, HEIGHT, FILTER_R, FILTER_S, 2, 0, RING, true, PLANES> Work;

// dout_planes [PLANES][n][p][q][k], filter_planes [PLANES][k][r][s][c], other and dimage [n][h][w][c]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv2d_dgrad_nhwc_wgmma_patch_planes(const __grid_constant__ TensorMap map_dout,
                                         const __grid_constant__ TensorMap map_filter,
                                         const int* __restrict__ dout_exponent,
                                         const int* __restrict__ channel_exponents,
#if OTHER
                                         const float* __restrict__ other,
#endif
                                         float* __restrict__ dimage, int n, int h, int w, int c, int k, int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared);
    const Work work(memory, memory + Work::bytes, n, h, w, c, k);
    if (threadIdx.x == 0) work.init();
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0)
            work.copy_patches([&](unsigned to, unsigned full, int slice, PatchPlace at, int plane) {
                const int left = FILTER_S - 1 - padding, above = FILTER_R - 1 - padding;
                load(to, &map_dout, full, slice * 64, at.x - left, at.y - above, at.image + plane * n);
            });
        else if (threadIdx.x == 32)
            work.copy_filters([&](unsigned to, unsigned full, int slice, int position, int channel, int plane) {
                load(to, &map_filter, full, channel, FILTER_R * FILTER_S - 1 - position, slice * 64, plane);
            });
    } else {
        registers_up<consumer_registers>();
        work.work([&](Work::Sums& sum, const PatchPlace& at) {
            scale_filters(sum, *dout_exponent, channel_exponents, at.filter, c);
            each_pixel(sum, at, h, w, c, [&](float x, size_t to) {
#if OTHER
                x = finished<EPILOGUE>(x, other[to]);
#endif
                dimage[to] = x;
            });
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
