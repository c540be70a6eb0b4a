// /// opbench
// title     = "Winograd F(2x2, 3x3) with 3xTF32: 16 matrix products instead of 36"
// builds_on = "nhwc_mma_3xtf32"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "fewer_operations", "double_buffer", "async_copy", "tensor_core", "operand_split",
// ]
// tile      = { m = "BM", n = "BN" }
// tune      = { BM = [128, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN", "STAGES == (3 if BM == 128 and BN == 64 else 4)"]
// define.WM    = "32 if BM == 64 else 64"
// define.BIAS  = "epilogue != 'none'"
// define.RELU  = "epilogue == 'bias_relu'"
// define.VEC_K = "4 if k % 4 == 0 else 1"
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32"] }
// requires  = [
//     "r == 3 and s == 3 and stride == 1", "c % 4 == 0", "16 * n * cdiv(p, 2) * cdiv(q, 2) * max(c, k) <= 2 ** 30",
//     "16 * (k + BN) * c < 2 ** 31",
// ]
// precision = "f32"
// product   = "tf32x3"
// compute_capability = "8.0"
//
// [workspace]
// filters  = "16 * k * c"
// patches  = "16 * n * cdiv(p, 2) * cdiv(q, 2) * c"
// products = "16 * n * cdiv(p, 2) * cdiv(q, 2) * k"
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
// kernel = "conv2d_winograd_products"
// grid   = ["cdiv(n * cdiv(p, 2) * cdiv(q, 2), BM) * cdiv(k, BN)", "16"]
// block  = ["32 * (BM // WM) * (BN // 32)"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["patches", "filters", "products", "n * cdiv(p, 2) * cdiv(q, 2)", "k", "c"]
//
// [[launch]]
// kernel = "conv2d_winograd_outputs"
// grid   = ["cdiv(n * cdiv(p, 2) * cdiv(q, 2) * k // VEC_K, 128)"]
// block  = [128]
// args   = ["products", "bias?", "out", "n", "k", "p", "q"]
// ///
//
// 2 x 2 outputs of a 3 x 3 filter depend on a 4 x 4 patch of the image. After a transform of patch and filter, 16
// products and a sum over the channels replace 36: 2.25 times fewer products for the tensor cores, which limit the
// previous variant. The transforms only add, subtract and halve, so whole numbers stay exact (larger tiles divide by
// 3). Limit: mma.sync's TF32 rate, and the traffic of the transformed patches and the products, four times the size of
// image and output, each written and read. That is little for the many channels of deep layers, too much for 64
// channels. Ideas: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015); three products as in
// CUTLASS example 28.

#include <opbench/products.cuh>
#include <opbench/stages.cuh>
#include <opbench/winograd_products.cuh>
using namespace opbench;

typedef Block<Product<Format::PRODUCT>, BM, BN, WM, 32, STAGES> Tile;

// weight [k][3][3][c] -> filters [4][4][k][c]; a thread has four channels of one filter.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_winograd_filters(const float* __restrict__ weight, float* __restrict__ filters, int k, int c) {
    float4* to = reinterpret_cast<float4*>(filters);
    transform_filters<3>(weight, k, c, [&](size_t vector, float4 value) { to[vector] = value; });
}

// image [n][h][w][c] -> patches [4][4][n][rows][columns][c]; a thread has four channels of one patch.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_winograd_patches(const float* __restrict__ image, float* __restrict__ patches, int n, int c, int h, int w,
                            int rows, int columns, int padding) {
    transform_patches<3>(image, patches, n, c, h, w, rows, columns, padding);
}

// patches [16][tiles][c], filters [16][k][c] -> products [16][tiles][k], one of the 16 per blockIdx.y
extern "C" __global__ void __launch_bounds__(Tile::threads, BN == 128   ? 1
                                                            : BM == 128 ? 2
                                                                        : 3)
    conv2d_winograd_products(const float* __restrict__ patches, const float* __restrict__ filters,
                             float* __restrict__ products, int tiles, int k, int c) {
    extern __shared__ __align__(16) unsigned char shared[];
    store_product<Tile>(shared, patches, filters, products, tiles, k, c);
}

#if VEC_K == 4
typedef float4 Out;
__device__ __forceinline__ Out clip(Out x) {
    return make_float4(fmaxf(x.x, 0.0f), fmaxf(x.y, 0.0f), fmaxf(x.z, 0.0f), fmaxf(x.w, 0.0f));
}
#else
typedef float Out;
__device__ __forceinline__ Out clip(Out x) { return fmaxf(x, 0.0f); }
#endif

// products [4][4][n][rows][columns][k], bias [k] -> out [n][p][q][k]; a thread has four output channels, or one.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_winograd_outputs(const float* __restrict__ products,
#if BIAS
                            const float* __restrict__ bias,
#endif
                            float* __restrict__ out, int n, int k, int p, int q) {
    const Out* from = reinterpret_cast<const Out*>(products);
    transform_products(from, n, k / VEC_K, p, q, [&](size_t at, int own, Out result) {
#if BIAS
        result = result + reinterpret_cast<const Out*>(bias)[own];
#endif
#if RELU
        result = clip(result);
#endif
        reinterpret_cast<Out*>(out)[at] = result;
    });
}
