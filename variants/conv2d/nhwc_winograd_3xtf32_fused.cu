// /// opbench
// title     = "fused Winograd for 3x3 or 5x5: products are transformed to the 2x2 outputs in registers"
// builds_on = "nhwc_winograd_3xtf32"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "compile_time_sizes", "fused", "fewer_operations", "double_buffer", "async_copy", "tensor_core",
//     "operand_split",
// ]
// tile      = { m = "BM", n = "BN" }
// tune      = { BM = [128, 64], BN = [64, 32], STAGES = [4] }
// define    = { SIZE = "r", BIAS = "epilogue != 'none'", RELU = "epilogue == 'bias_relu'" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32"] }
// requires  = [
//     "r == s and r in (3, 5) and stride == 1", "c % 4 == 0", "(k + BN) * c * 49 < 2 ** 31", "n * p * q < 2 ** 31",
//     "(49 if r == 5 else 16) * n * cdiv(p, 2) * cdiv(q, 2) * c <= 2 ** 30",
// ]
// product   = "tf32x3"
// compute_capability = "8.0"
//
// [workspace]
// filters = "(49 if r == 5 else 16) * k * c"
// patches = "(49 if r == 5 else 16) * n * cdiv(p, 2) * cdiv(q, 2) * c"
//
// [[launch]]
// kernel = "conv2d_winograd_filters"
// grid   = ["cdiv(k * c // 4, 128)"]
// block  = [128]
// args   = ["weight", "filters", "k", "c"]
// setup  = true
//
// [[launch]]
// kernel = "conv2d_winograd_patches"
// grid   = ["cdiv(n * cdiv(p, 2) * cdiv(q, 2) * c // 4, 128)"]
// block  = [128]
// args   = ["image", "patches", "n", "c", "h", "w", "cdiv(p, 2)", "cdiv(q, 2)", "padding"]
//
// [[launch]]
// kernel = "conv2d_winograd_outputs"
// grid   = ["cdiv(n * cdiv(p, 2) * cdiv(q, 2), BM) * cdiv(k, BN)"]
// block  = ["BM * BN // 32"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["patches", "filters", "bias?", "out", "n", "k", "c", "p", "q"]
// ///
//
// The 2 x 2 outputs are sums of the sixteen products with factors 1, 0 and -1. So a block computes all sixteen products
// of its tiles one after the other, and adds the sums of each step to the outputs at once: four sums per product
// instead of one, with 32 x 32 tiles per warp. This saves the traffic of the products, eight times the output. Limit:
// mma.sync's TF32 rate, eight warps per multiprocessor, and the traffic of the patches if channels are few. With few
// tiles there are too few blocks; the previous variant has sixteen times as many.
//
// A filter of size 5 is treated as one of size 3 and one of size 2 along each axis: 4 + 3 products for 2 outputs, which
// is 49 instead of 100 for 2 x 2, and whole numbers still stay exact. Ideas: those of nhwc_winograd_3xtf32, and
// Winograd's nesting of short filters; summing in registers is our own.

#include <opbench/products.cuh>
#include <opbench/stages.cuh>
#include <opbench/winograd_products.cuh>
using namespace opbench;

typedef Block<Product<Format::PRODUCT>, BM, BN, 32, 32, STAGES> Tile;

// weight [k][SIZE][SIZE][c] -> filters [points][points][k][c]; a thread has four channels of one filter.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_winograd_filters(const float* __restrict__ weight, float* __restrict__ filters, int k, int c) {
    float4* to = reinterpret_cast<float4*>(filters);
    transform_filters<SIZE>(weight, k, c, [&](size_t vector, float4 value) { to[vector] = value; });
}

// image [n][h][w][c] -> patches [points][points][n][rows][columns][c]; a thread has four channels of one patch.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_winograd_patches(const float* __restrict__ image, float* __restrict__ patches, int n, int c, int h, int w,
                            int rows, int columns, int padding) {
    transform_patches<SIZE>(image, patches, n, c, h, w, rows, columns, padding);
}

// patches [points][points][tiles][c], filters [points][points][k][c], bias [k] -> out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(Tile::threads, 256 / Tile::threads)
    conv2d_winograd_outputs(const float* __restrict__ patches, const float* __restrict__ filters,
#if BIAS
                            const float* __restrict__ bias,
#endif
                            float* __restrict__ out, int n, int k, int c, int p, int q) {
    extern __shared__ __align__(16) unsigned char shared[];
#if !BIAS
    const float* bias = nullptr;
#endif
    sum_products<Tile, SIZE>(shared, patches, filters, n, k, c, p, q, [&](size_t at, int column, float4 sum) {
        store_four<BIAS, RELU>(out + at, sum, bias + (BIAS ? column : 0), k - column, k % 4 == 0);
    });
}
