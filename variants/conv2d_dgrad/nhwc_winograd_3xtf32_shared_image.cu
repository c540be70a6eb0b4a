// /// opbench
// title     = "fused Winograd that also transforms dout, in shared memory: a workspace only for filters"
// builds_on = "nhwc_winograd_3xtf32_fused"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "fused",
//     "fewer_operations", "double_buffer", "async_copy", "tensor_core", "operand_split",
// ]
// tune      = { BN = [64, 128], STAGES = [2, 4] }
// where     = ["STAGES == (2 if BN == 64 else 4)"]  # two blocks per multiprocessor, or one
// supports  = { layout = ["nhwc"], epilogue = ["none", "add", "mask"], dtype = ["f32"] }
// requires  = [
//     "r == 3 and s == 3 and stride == 1", "k % 8 == 0", "16 * (c + BN) * k < 2 ** 31", "n * h * w < 2 ** 31",
// ]
// product   = "tf32x3"
// compute_capability = "8.0"
// define.EPILOGUE = "'plain' if epilogue == 'none' else epilogue"
// define.OTHER    = "epilogue != 'none'"
// workspace = { filters = "16 * k * c" }
//
// [[launch]]
// kernel = "conv2d_dgrad_winograd_filters"
// grid   = ["cdiv(k * c // 4, 128)"]
// block  = [128]
// args   = ["weight", "filters", "k", "c"]
//
// [[launch]]
// kernel = "conv2d_dgrad_winograd_image"
// grid   = ["n * cdiv(h, 16) * cdiv(w, 16) * cdiv(c, BN)"]
// block  = ["2 * BN"]
// shared = "2 * 18 * 18 * 36 * 4 + STAGES * BN * 128"
// args   = ["dout", "filters", "skip?", "out?", "dimage", "n", "k", "p", "q", "c", "h", "w", "2 - padding"]
// ///
//
// As conv2d/nhwc_winograd_3xtf32_shared_image, but over dout, whose depth is k: only the filters need a workspace.
// Limits: mma.sync's TF32 rate and shared memory; best for few channels and large images.

#include <opbench/gradients.cuh>
#include <opbench/products.cuh>
#include <opbench/winograd_image.cuh>
using namespace opbench;

// tiles of 2 x 2 pixels; the stages hold filters only
typedef Block<Product<Format::PRODUCT>, 64, BN, 32, 32, STAGES> Tile;

// weight [k][3][3][c], rotated by 180 degrees -> filters [4][4][c][k]; a thread transforms four of k at one c.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_dgrad_winograd_filters(const float* __restrict__ weight, float* __restrict__ filters, int k, int c) {
    transform_turned_filters<3>(weight, k, c,
                                [&](size_t vector, float4 value) { store_interleaved(filters, vector, value); });
}

// dout [n][p][q][k], filters [4][4][c][k], other (skip or out) and dimage [n][h][w][c]; border: dout's padding
extern "C" __global__ void __launch_bounds__(Tile::threads, 256 / Tile::threads)
    conv2d_dgrad_winograd_image(const float* __restrict__ dout, const float* __restrict__ filters,
#if OTHER
                                const float* __restrict__ other,
#endif
                                float* __restrict__ dimage, int n, int k, int p, int q, int c, int h, int w,
                                int border) {
    extern __shared__ __align__(16) float pixels[];
#if !OTHER
    const float* other = nullptr;
#endif
    convolve_image<Tile>(pixels, dout, filters, n, k, p, q, c, h, w, border, [&](size_t at, int column, float4 sum) {
        finish_four<EPILOGUE>(dimage + at, sum, other + (OTHER ? at : 0), c - column, c % 4 == 0);
    });
}
