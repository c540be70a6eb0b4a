// /// opbench
// title     = "fused Winograd for 3x3 or 5x5: products are transformed to the 2x2 pixels in registers"
// builds_on = "nhwc_winograd_3xtf32"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "compile_time_sizes", "fused", "fewer_operations", "double_buffer", "async_copy", "tensor_core",
//     "operand_split",
// ]
// tile      = { m = "BM", n = "BN" }
// tune      = { BM = [128, 64], BN = [64, 32], STAGES = [4] }
// supports  = { layout = ["nhwc"], epilogue = ["none", "add", "mask"], dtype = ["f32"] }
// requires  = [
//     "r == s and r in (3, 5) and stride == 1", "k % 4 == 0", "(c + BN) * k * 49 < 2 ** 31", "n * h * w < 2 ** 31",
//     "(49 if r == 5 else 16) * n * cdiv(h, 2) * cdiv(w, 2) * k <= 2 ** 30",
// ]
// product   = "tf32x3"
// compute_capability = "8.0"
// define.SIZE     = "r"
// define.EPILOGUE = "'plain' if epilogue == 'none' else epilogue"
// define.OTHER    = "epilogue != 'none'"
//
// [workspace]
// filters = "(49 if r == 5 else 16) * k * c"
// patches = "(49 if r == 5 else 16) * n * cdiv(h, 2) * cdiv(w, 2) * k"
//
// [[launch]]
// kernel = "conv2d_dgrad_winograd_filters"
// grid   = ["cdiv(k * c // 4, 128)"]
// block  = [128]
// args   = ["weight", "filters", "k", "c"]
//
// [[launch]]
// kernel = "conv2d_dgrad_winograd_patches"
// grid   = ["cdiv(n * cdiv(h, 2) * cdiv(w, 2) * k // 4, 128)"]
// block  = [128]
// args   = ["dout", "patches", "n", "k", "p", "q", "cdiv(h, 2)", "cdiv(w, 2)", "r - 1 - padding"]
//
// [[launch]]
// kernel = "conv2d_dgrad_winograd_products"
// grid   = ["cdiv(n * cdiv(h, 2) * cdiv(w, 2), BM) * cdiv(c, BN)"]
// block  = ["BM * BN // 32"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["patches", "filters", "skip?", "out?", "dimage", "n", "c", "k", "h", "w"]
// ///
//
// As conv2d/nhwc_winograd_3xtf32_fused, but over dout, whose depth is k; one kernel rotates and transforms the
// filters. Because the output transform is fused, the products are not written to memory. Limits: mma.sync's TF32 rate, eight warps per multiprocessor, the
// traffic of the patches.

#include <opbench/gradients.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
#include <opbench/winograd_products.cuh>
using namespace opbench;

typedef Block<Product<Format::PRODUCT>, BM, BN, 32, 32, STAGES> Tile;

// weight [k][SIZE][SIZE][c], rotated by 180 degrees -> filters [points][points][c][k]; a thread transforms four of k at
// one c.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_dgrad_winograd_filters(const float* __restrict__ weight, float* __restrict__ filters, int k, int c) {
    float4* to = reinterpret_cast<float4*>(filters);
    transform_turned_filters<SIZE>(weight, k, c, [&](size_t vector, float4 value) { to[vector] = value; });
}

// dout [n][p][q][k] -> patches [points][points][n][rows][columns][k]; a thread has four of k of one patch.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_dgrad_winograd_patches(const float* __restrict__ dout, float* __restrict__ patches, int n, int k, int p,
                                  int q, int rows, int columns, int border) {
    transform_patches<SIZE>(dout, patches, n, k, p, q, rows, columns, border);
}

// patches [points][points][tiles][k], filters [points][points][c][k], other (skip or out) and dimage [n][h][w][c]
extern "C" __global__ void __launch_bounds__(Tile::threads, 256 / Tile::threads)
    conv2d_dgrad_winograd_products(const float* __restrict__ patches, const float* __restrict__ filters,
#if OTHER
                                   const float* __restrict__ other,
#endif
                                   float* __restrict__ dimage, int n, int c, int k, int h, int w) {
    extern __shared__ __align__(16) unsigned char shared[];
#if !OTHER
    const float* other = nullptr;
#endif
    sum_products<Tile, SIZE>(shared, patches, filters, n, c, k, h, w, [&](size_t at, int column, float4 sum) {
        finish_four<EPILOGUE>(dimage + at, sum, other + (OTHER ? at : 0), c - column, c % 4 == 0);
    });
}
