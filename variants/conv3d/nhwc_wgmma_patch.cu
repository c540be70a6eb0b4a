// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "compile_time_sizes", "double_buffer", "tma", "tensor_core",
//     "warp_specialised", "persistent",
// ]
// tile      = { patch_height = "HEIGHT", patch_width = 8 }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"] }
// requires  = [
//     "groups == 1 and stride_h == 1 and stride_w == 1 and dilation_h == 1 and dilation_w == 1",
//     "r <= 7 and s <= 7 and r * s > 1", "PATCHES >= 2",
//     "n * z * cdiv(p, 16) * cdiv(q, 8) * cdiv(k, 64) * cdiv(c, 32) * t * r * s < 2 ** 31",
// ]
// compute_capability = "9.0a"
// tune      = { HEIGHT = [28, 32, 16] }
//
// [define]
// BK       = "64 if PRODUCT == 'bf16' else 32"
// FILTER_R = "r"
// FILTER_S = "s"
// RING     = "8 if PRODUCT == 'bf16' else 16"
// SLABS    = "2 * HEIGHT * 8 * 128 if PRODUCT == 'bf16' else 0"
// ROOM     = "cdiv((HEIGHT + r - 1) * (7 + s), 8) * 1024"
// PATCHES  = "min(4, (230400 - SLABS - RING * 8192) // ROOM)"
// BIAS     = "epilogue != 'none'"
// RELU     = "epilogue == 'bias_relu'"
//
// [tensor_maps]
// map_image  = { tensor = "image", type = "PRODUCT", box = ["BK", "7 + s", "HEIGHT + r - 1", 1, 1] }
// map_weight = { tensor = "weight", type = "PRODUCT", dims = ["c", "t * r * s", "k"], box = ["BK", 1, 64] }
//
// [variant.nhwc_wgmma_patch_bf16]
// title     = "bf16 wgmma: one TMA copy of a slice's patch for all r x s filter elements, by shifted descriptors"
// builds_on = "nhwc_wgmma_bf16"
// mechanism = ["bank_conflict_free"]
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["c % 8 == 0 and k % 8 == 0"]
// tensor_maps.map_out = { tensor = "out", dims = ["k", "q", "p", "n * z"], box = [64, 8, "HEIGHT", 1] }
//
// [[variant.nhwc_wgmma_patch_bf16.launch]]
// kernel = "conv3d_nhwc_wgmma_patch"
// grid   = ["min(sm_count, n * z * cdiv(p, HEIGHT) * cdiv(q, 8) * cdiv(k, 64))"]
// block  = [384]
// shared = "RING * 8192 + PATCHES * ROOM + SLABS + 16 * (1 + PATCHES + RING)"
// args   = ["map_image", "map_weight", "bias?", "map_out", { struct = [
//     "n", "c", "d", "h", "w", "k", "t", "r", "s", "stride_d", "stride_h", "stride_w", "padding_d", "padding_h",
//     "padding_w", "dilation_d", "dilation_h", "dilation_w", "group_channels", "group_filters", "z", "p", "q",
// ] }]
//
// [variant.nhwc_wgmma_patch_tf32]
// title     = "TF32 wgmma: one TMA copy of a slice's patch for all r x s filter elements, by shifted descriptors"
// builds_on = "nhwc_wgmma_tf32"
// product   = "tf32"
// requires  = ["c % 4 == 0"]
//
// [[variant.nhwc_wgmma_patch_tf32.launch]]
// kernel = "conv3d_nhwc_wgmma_patch"
// grid   = ["min(sm_count, n * z * cdiv(p, HEIGHT) * cdiv(q, 8) * cdiv(k, 64))"]
// block  = [384]
// shared = "RING * 8192 + PATCHES * ROOM + 16 * (1 + PATCHES + RING)"
// args   = ["map_image", "map_weight", "bias?", "out", { struct = [
//     "n", "c", "d", "h", "w", "k", "t", "r", "s", "stride_d", "stride_h", "stride_w", "padding_d", "padding_h",
//     "padding_w", "dilation_d", "dilation_h", "dilation_w", "group_channels", "group_filters", "z", "p", "q",
// ] }]
// ///
//
// The kernel of conv2d/nhwc_wgmma_patch: slices of the output replace its images, and the depth of the product is t
// slices of the input times channels. One copy loads HEIGHT x 8 voxels of a slice, with a border, for all r x s filter
// positions in it, so L2 delivers a voxel about 1.4 t times instead of t r s times. 64 filters are the rows of wgmma,
// so a layer with 64 filters fills the tile. Images of 56 and 28 rows are multiples of 28 rows. Filters are loaded
// through a ring of 8 KB stages. Limit: the tensor cores; L2, because each tile reads all filters again.

#include <opbench/patch_sums.cuh>
#include <opbench/ring.cuh>
#include <opbench/tma.cuh>
#include <opbench/volume.cuh>
using namespace opbench;

typedef Patch<Format::PRODUCT, HEIGHT, FILTER_R, FILTER_S, PATCHES, 0, RING, false> Work;
typedef Stored<Format::PRODUCT>::T T;

// image [n][d][h][w][c], weight [k][t][r][s][c], bias [k], out [n][z][p][q][k]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv3d_nhwc_wgmma_patch(const __grid_constant__ TensorMap map_image, const __grid_constant__ TensorMap map_weight,
#if BIAS
                            const T* __restrict__ bias,
#endif
#if BK == 64
                            const __grid_constant__ TensorMap map_out,
#else
                            T* __restrict__ out,
#endif
                            VolumeSizes size) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Work::bytes;
    // parts: of the channels; a slice of Work is a pair of tap and part
    const int parts = (size.c + BK - 1) / BK, k = size.k;
    const Work work(memory, slabs + SLABS, size.n * size.z, size.p, size.q, k, size.t * parts * BK);
    if (threadIdx.x == 0) work.init();
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0)
            work.copy_patches([&](unsigned to, unsigned full, int slice, PatchPlace at, int) {
                const int front = at.image % size.z * size.stride_d - size.padding_d;
                load(to, &map_image, full, slice % parts * BK, at.x - size.padding_w, at.y - size.padding_h,
                     front + slice / parts * size.dilation_d, at.image / size.z);
            });
        else if (threadIdx.x == 32)
            work.copy_filters([&](unsigned to, unsigned full, int slice, int position, int filter, int) {
                load(to, &map_weight, full, slice % parts * BK, slice / parts * Work::positions + position, filter);
            });
    } else {
        registers_up<consumer_registers>();
#if !BIAS
        const T* bias = nullptr;
#endif
#if BK == 64
        store_patches<BIAS, RELU>(work, slabs, &map_out, bias, k);
#else
        store_patches<BIAS, RELU>(work, out, bias, size.p, size.q, k);
#endif
    }
}
