// /// opbench
// title     = "Winograd F(2x2, 3x3) over dout with 3xTF32: 16 matrix products instead of 36"
// builds_on = "nhwc_mma_3xtf32"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "fewer_operations", "double_buffer", "async_copy", "tensor_core", "operand_split",
// ]
// tile      = { m = "BM", n = "BN" }
// tune      = { BM = [128, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN", "STAGES == (3 if BM == 128 and BN == 64 else 4)"]
// supports  = { layout = ["nhwc"], epilogue = ["none", "add", "mask"], dtype = ["f32"] }
// requires  = [
//     "r == 3 and s == 3 and stride == 1", "k % 4 == 0", "16 * n * cdiv(h, 2) * cdiv(w, 2) * max(c, k) <= 2 ** 30",
//     "16 * (c + BN) * k < 2 ** 31",
// ]
// product   = "tf32x3"
// compute_capability = "8.0"
// define.WM       = "32 if BM == 64 else 64"
// define.VEC_C    = "4 if c % 4 == 0 else 1"
// define.EPILOGUE = "'plain' if epilogue == 'none' else epilogue"
// define.OTHER    = "epilogue != 'none'"
//
// [workspace]
// filters  = "16 * k * c"
// patches  = "16 * n * cdiv(h, 2) * cdiv(w, 2) * k"
// products = "16 * n * cdiv(h, 2) * cdiv(w, 2) * c"
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
// args   = ["dout", "patches", "n", "k", "p", "q", "cdiv(h, 2)", "cdiv(w, 2)", "2 - padding"]
//
// [[launch]]
// kernel = "conv2d_dgrad_winograd_products"
// grid   = ["cdiv(n * cdiv(h, 2) * cdiv(w, 2), BM) * cdiv(c, BN)", "16"]
// block  = ["32 * (BM // WM) * (BN // 32)"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["patches", "filters", "products", "n * cdiv(h, 2) * cdiv(w, 2)", "c", "k"]
//
// [[launch]]
// kernel = "conv2d_dgrad_winograd_pixels"
// grid   = ["cdiv(n * cdiv(h, 2) * cdiv(w, 2) * c // VEC_C, 128)"]
// block  = [128]
// args   = ["products", "skip?", "out?", "dimage", "n", "c", "h", "w"]
// ///
//
// At stride 1, the gradient is a convolution of dout with filters that are rotated by 180 degrees and whose channels
// are swapped. So the Winograd kernels of the forward pass work here, too, and the rotation costs nothing: the
// transform of the filters reads them in that order. The tensor cores compute 2.25 times fewer products than in the
// previous variant. Limit: mma.sync's TF32 rate, and the traffic of patches and products, four times the size of dout
// and the image; best for many channels. Ideas: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks"
// (2015).

#include <opbench/gradients.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
#include <opbench/winograd_products.cuh>
using namespace opbench;

typedef Block<Product<Format::PRODUCT>, BM, BN, WM, 32, STAGES> Tile;

// weight [k][3][3][c], rotated by 180 degrees -> filters [4][4][c][k]; a thread transforms four of k at one c.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_dgrad_winograd_filters(const float* __restrict__ weight, float* __restrict__ filters, int k, int c) {
    float4* to = reinterpret_cast<float4*>(filters);
    transform_turned_filters<3>(weight, k, c, [&](size_t vector, float4 value) { to[vector] = value; });
}

// dout [n][p][q][k] -> patches [4][4][n][rows][columns][k]; a thread has four of k of one patch.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_dgrad_winograd_patches(const float* __restrict__ dout, float* __restrict__ patches, int n, int k, int p,
                                  int q, int rows, int columns, int border) {
    transform_patches<3>(dout, patches, n, k, p, q, rows, columns, border);
}

// patches [16][tiles][k], filters [16][c][k] -> products [16][tiles][c], one of the 16 per blockIdx.y
extern "C" __global__ void __launch_bounds__(Tile::threads, BN == 128   ? 1
                                                            : BM == 128 ? 2
                                                                        : 3)
    conv2d_dgrad_winograd_products(const float* __restrict__ patches, const float* __restrict__ filters,
                                   float* __restrict__ products, int tiles, int c, int k) {
    extern __shared__ __align__(16) unsigned char shared[];
    store_product<Tile>(shared, patches, filters, products, tiles, c, k);
}

#if VEC_C == 4
typedef float4 Vector;
#else
typedef float Vector;
#endif

// products [4][4][n][rows][columns][c], other (skip or out) -> dimage [n][h][w][c]; a thread has four channels, or one.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_dgrad_winograd_pixels(const float* __restrict__ products,
#if OTHER
                                 const float* __restrict__ other,
#endif
                                 float* __restrict__ dimage, int n, int c, int h, int w) {
#if !OTHER
    const float* other = nullptr;
#endif
    const Vector* from = reinterpret_cast<const Vector*>(products);
    transform_products(from, n, c / VEC_C, h, w, [&](size_t at, int, Vector sum) {
#if VEC_C == 4
        finish_four<EPILOGUE>(dimage + at * 4, sum, other + (OTHER ? at * 4 : 0), 4, true);
#else
        dimage[at] = finished<EPILOGUE>(sum, OTHER ? other[at] : 0.0f);
#endif
    });
}
