// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "compile_time_sizes", "double_buffer", "tma", "tensor_core",
//     "warp_specialised", "persistent", "overlapped_launch",
// ]
// tile      = { patch_height = "HEIGHT", patch_width = 8 }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"] }
// requires  = [
//     "stride == 1 and r <= 7 and s <= 7 and padding <= 16 and r * s > 1", "PATCHES >= 2 and (HELD == 0 or k <= 64)",
//     "n * cdiv(p, 16) * cdiv(q, 8) * cdiv(k, 64) * cdiv(c, 32) * r * s < 2 ** 31",
// ]
// compute_capability = "9.0a"
// tune      = { HEIGHT = [32, 16], RESIDENT = [0, 1] }
//
// [define]
// BK       = "64 if PRODUCT == 'bf16' else 32"
// FILTER_R = "r"
// FILTER_S = "s"
// HELD     = "cdiv(c, BK) if RESIDENT == 1 else 0"
// RING     = "8 if PRODUCT == 'bf16' else 16"
// SLABS    = "2 * HEIGHT * 8 * 128 if PRODUCT == 'bf16' else 0"
// FILTERS  = "8192 * (r * s * HELD if RESIDENT == 1 else RING)"
// ROOM     = "cdiv((HEIGHT + r - 1) * (7 + s), 8) * 1024"
// PATCHES  = "min(4, (230400 - 16 * r * s * HELD - SLABS - FILTERS) // ROOM)"
// BIAS     = "epilogue != 'none'"
// RELU     = "epilogue == 'bias_relu'"
//
// [tensor_maps]
// map_image  = { tensor = "image", type = "PRODUCT", box = ["BK", "7 + s", "HEIGHT + r - 1", 1] }
// map_weight = { tensor = "weight", type = "PRODUCT", dims = ["c", "r * s", "k"], box = ["BK", 1, 64] }
//
// [variant.nhwc_wgmma_patch_bf16]
// title     = "bf16 wgmma: one TMA copy of an image patch for all filter positions, by shifted descriptors"
// builds_on = "nhwc_wgmma_bf16"
// mechanism = ["bank_conflict_free"]
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["c % 8 == 0 and k % 8 == 0"]
// tensor_maps.map_out = { tensor = "out", box = [64, 8, "HEIGHT", 1] }
//
// [[variant.nhwc_wgmma_patch_bf16.launch]]
// kernel = "conv2d_nhwc_wgmma_patch"
// grid   = ["min(sm_count, n * cdiv(p, HEIGHT) * cdiv(q, 8) * cdiv(k, 64))"]
// block  = [384]
// shared = "FILTERS + PATCHES * ROOM + SLABS + 16 * (1 + PATCHES + FILTERS // 8192)"
// args   = ["map_image", "map_weight", "bias?", "map_out", "n", "p", "q", "k", "c", "padding"]
// programmatic = true
// early = ["weight"]
//
// [variant.nhwc_wgmma_patch_tf32]
// title     = "TF32 wgmma: one TMA copy of an image patch for all filter positions, by shifted descriptors"
// builds_on = "nhwc_wgmma_tf32"
// product   = "tf32"
// requires  = ["c % 4 == 0"]
//
// [[variant.nhwc_wgmma_patch_tf32.launch]]
// kernel = "conv2d_nhwc_wgmma_patch"
// grid   = ["min(sm_count, n * cdiv(p, HEIGHT) * cdiv(q, 8) * cdiv(k, 64))"]
// block  = [384]
// shared = "FILTERS + PATCHES * ROOM + 16 * (1 + PATCHES + FILTERS // 8192)"
// args   = ["map_image", "map_weight", "bias?", "out", "n", "p", "q", "k", "c", "padding"]
// programmatic = true
// early = ["weight"]
// ///
//
// An im2col copy fetches every pixel r s times from L2, which limits it. Here TMA copies a patch, HEIGHT x 8 pixels and
// their border, once. For filter position (i, j) wgmma's descriptor starts i rows and j pixels later; the swizzle still
// fits, because it follows the address. The 64 rows of the product are filters and its columns are pixels, so layers
// with 64 filters, a large share of UNet's work, fill a tile: 1.7 times as fast as cuDNN there. If the filters fit,
// they stay in shared memory (RESIDENT); otherwise a second thread loads them through a ring of 8 KB stages. Two
// warpgroups take turns: one stores while the other multiplies. Limit: the tensor cores, then power; for images much
// smaller than a patch, the pixels outside the image.

#include <opbench/overlap.cuh>
#include <opbench/patch_sums.cuh>
#include <opbench/ring.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

typedef Patch<Format::PRODUCT, HEIGHT, FILTER_R, FILTER_S, PATCHES, HELD, RING, false> Work;
typedef Stored<Format::PRODUCT>::T T;

// image [n][h][w][c], weight [k][r][s][c], bias [k], out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv2d_nhwc_wgmma_patch(const __grid_constant__ TensorMap map_image, const __grid_constant__ TensorMap map_weight,
#if BIAS
                            const T* __restrict__ bias,
#endif
#if BK == 64
                            const __grid_constant__ TensorMap map_out,
#else
                            T* __restrict__ out,
#endif
                            int n, int p, int q, int k, int c, int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Work::bytes;
    const Work work(memory, slabs + SLABS, n, p, q, k, c);
    if (threadIdx.x == 0) work.init();
    __syncthreads();
    let_next_launch_start();
    if (threadIdx.x / 32 != 1) wait_for_launches_before();  // filters are there

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0)
            work.copy_patches([&](unsigned to, unsigned full, int slice, PatchPlace at, int) {
                load(to, &map_image, full, slice * BK, at.x - padding, at.y - padding, at.image);
            });
        else if (threadIdx.x == 32)
            work.copy_filters([&](unsigned to, unsigned full, int slice, int position, int filter, int) {
                load(to, &map_weight, full, slice * BK, position, filter);
            });
    } else {
        registers_up<consumer_registers>();
#if !BIAS
        const T* bias = nullptr;
#endif
#if BK == 64
        store_patches<BIAS, RELU>(work, slabs, &map_out, bias, k);
#else
        store_patches<BIAS, RELU>(work, out, bias, p, q, k);
#endif
    }
}
