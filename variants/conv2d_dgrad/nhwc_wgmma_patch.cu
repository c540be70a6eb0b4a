// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "bank_conflict_free", "compile_time_sizes", "double_buffer", "tma",
//     "tensor_core", "warp_specialised", "persistent",
// ]
// tile      = { patch_height = "HEIGHT", patch_width = 8 }
// supports  = { layout = ["nhwc"], epilogue = ["none", "add", "mask"] }
// requires  = [
//     "stride == 1 and padding < r and padding < s and r <= 7 and s <= 7 and r * s > 1",
//     "PATCHES >= 2 and (HELD == 0 or c <= 64)",
//     "n * cdiv(h, 16) * cdiv(w, 8) * cdiv(c, 64) * cdiv(k, 32) * r * s < 2 ** 31",
// ]
// compute_capability = "9.0a"
// tune      = { HEIGHT = [32, 16], RESIDENT = [0, 1] }
//
// [define]
// BK       = "64 if PRODUCT == 'bf16' else 32"
// FILTER_R = "r"
// FILTER_S = "s"
// HELD     = "cdiv(k, BK) if RESIDENT == 1 else 0"
// RING     = "8 if PRODUCT == 'bf16' else 16"
// SLABS    = "2 * HEIGHT * 8 * 128 if PRODUCT == 'bf16' else 0"
// FILTERS  = "8192 * (r * s * HELD if RESIDENT == 1 else RING)"
// ROOM     = "cdiv((HEIGHT + r - 1) * (7 + s), 8) * 1024"
// PATCHES  = "min(4, (230400 - 16 * r * s * HELD - SLABS - FILTERS) // ROOM)"
// EPILOGUE = "'plain' if epilogue == 'none' else epilogue"
// OTHER    = "epilogue != 'none'"
//
// [tensor_maps]
// map_dout = { tensor = "dout", type = "PRODUCT", box = ["BK", "7 + s", "HEIGHT + r - 1", 1] }
//
// [variant.nhwc_wgmma_patch_bf16]
// title     = "bf16 wgmma: one TMA copy of a patch of dout for all filter positions; wgmma transposes filters"
// builds_on = "nhwc_wgmma_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["c % 8 == 0 and k % 8 == 0"]
//
// [variant.nhwc_wgmma_patch_bf16.tensor_maps]
// map_weight = { tensor = "weight", dims = ["c", "r * s", "k"], box = [64, 1, 64] }
// map_skip   = { tensor = "skip", box = [64, 8, "HEIGHT", 1] }
// map_cut    = { tensor = "out", box = [64, 8, "HEIGHT", 1] }
// map_out    = { tensor = "dimage", box = [64, 8, "HEIGHT", 1] }
//
// [[variant.nhwc_wgmma_patch_bf16.launch]]
// kernel = "conv2d_dgrad_nhwc_wgmma_patch"
// grid   = ["min(sm_count, n * cdiv(h, HEIGHT) * cdiv(w, 8) * cdiv(c, 64))"]
// block  = [384]
// shared = "FILTERS + PATCHES * ROOM + SLABS + 16 * (2 + PATCHES + FILTERS // 8192)"
// args   = ["map_dout", "map_weight", "map_skip?", "map_cut?", "map_out", "n", "h", "w", "c", "k", "padding"]
//
// [variant.nhwc_wgmma_patch_tf32]
// title     = "TF32 wgmma: one TMA copy of a patch of dout for all filter positions; filters transposed first"
// builds_on = "nhwc_wgmma_tf32"
// product   = "tf32"
// requires  = ["c % 4 == 0 and k % 4 == 0"]
// workspace = { turned = "k * c * r * s" }
// tensor_maps.map_weight = { tensor = "turned", type = "tf32", dims = ["k", "r * s", "c"], box = [32, 1, 64] }
//
// [[variant.nhwc_wgmma_patch_tf32.launch]]
// kernel = "conv2d_dgrad_transpose_filters"
// grid   = ["cdiv(c, 64)", "cdiv(k, 64)", "r * s"]
// block  = [256]
// args   = ["weight", "turned", "k", "c"]
//
// [[variant.nhwc_wgmma_patch_tf32.launch]]
// kernel = "conv2d_dgrad_nhwc_wgmma_patch"
// grid   = ["min(sm_count, n * cdiv(h, HEIGHT) * cdiv(w, 8) * cdiv(c, 64))"]
// block  = [384]
// shared = "FILTERS + PATCHES * ROOM + 16 * (1 + PATCHES + FILTERS // 8192)"
// args   = ["map_dout", "map_weight", "skip?", "out?", "dimage", "n", "h", "w", "c", "k", "padding"]
// ///
//
// This is conv2d/nhwc_wgmma_patch with dout as its image. The gradient of an image is the convolution of dout with
// filters that are rotated by 180 degrees and transposed. To rotate them, the kernel counts filter positions downwards.
// wgmma reads bf16 filters in the transposed order from where they are stored. TMA loads the epilogue's inputs into the
// slab from which the result is stored; ldmatrix reads them in the order of the sums. Limit: as in
// conv2d/nhwc_wgmma_patch.

#include <opbench/gradients.cuh>
#include <opbench/patch_sums.cuh>
#include <opbench/ring.cuh>
#include <opbench/transposed.cuh>
using namespace opbench;

typedef Patch<Format::PRODUCT, HEIGHT, FILTER_R, FILTER_S, PATCHES, HELD, RING, BK == 64> Work;
typedef Stored<Format::PRODUCT>::T T;

// dout [n][p][q][k], weight [k][r][s][c] (bf16) or [c][r][s][k], other and dimage [n][h][w][c]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv2d_dgrad_nhwc_wgmma_patch(const __grid_constant__ TensorMap map_dout,
                                  const __grid_constant__ TensorMap map_weight,
#if BK == 64
#if OTHER
                                  const __grid_constant__ TensorMap map_other,
#endif
                                  const __grid_constant__ TensorMap map_out,
#else
#if OTHER
                                  const T* __restrict__ other,
#endif
                                  T* __restrict__ dimage,
#endif
                                  int n, int h, int w, int c, int k, int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Work::bytes;
    const Work work(memory, slabs + SLABS, n, h, w, c, k);
    const unsigned other_full = slabs + SLABS + Work::barrier_bytes;  // one a warpgroup, with bf16
    if (threadIdx.x == 0) {
        if (BK == 64) barrier_init(other_full, 1), barrier_init(other_full + 8, 1);
        work.init();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0)
            work.copy_patches([&](unsigned to, unsigned full, int slice, PatchPlace at, int) {
                const int left = FILTER_S - 1 - padding, above = FILTER_R - 1 - padding;
                load(to, &map_dout, full, slice * BK, at.x - left, at.y - above, at.image);
            });
        else if (threadIdx.x == 32)
            work.copy_filters([&](unsigned to, unsigned full, int slice, int position, int channel, int) {
                const int turned = FILTER_R * FILTER_S - 1 - position;
                load(to, &map_weight, full, BK == 64 ? channel : slice * BK, turned, BK == 64 ? slice * BK : channel);
            });
    } else {
        registers_up<consumer_registers>();
#if BK == 64
        PixelSlab<Work> slab(slabs, other_full);
        work.work([&](Work::Sums& sum, const PatchPlace& at) {
            slab.reuse();
#if OTHER
            slab.combine_tile(sum, &map_other, at, finished<EPILOGUE>);
#endif
            slab.store_tile(sum, &map_out, at);
        });
        slab.finish();
#else
        work.work([&](Work::Sums& sum, const PatchPlace& at) {
            each_pixel(sum, at, h, w, c, [&](float x, size_t to) {
#if OTHER
                x = finished<EPILOGUE>(x, other[to]);
#endif
                dimage[to] = x;
            });
        });
#endif
    }
}

// turned [c][r s][k] = weight [k][r s][c]
extern "C" __global__ void __launch_bounds__(256)
    conv2d_dgrad_transpose_filters(const float* __restrict__ weight, float* __restrict__ turned, int k, int c) {
    const int position = blockIdx.z, positions = gridDim.z;
    transpose_tile(weight + position * c, turned + position * k, k, c, positions * c, positions * k);
}
