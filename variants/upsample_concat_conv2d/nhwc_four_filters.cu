// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "fewer_operations", "double_buffer", "async_copy", "tensor_core",
// ]
// tile      = { m = "BM", n = "BN" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"] }
// requires  = [
//     "r == 3 and s == 3 and padding == 1", "4 * n * h * w * max(c1, c2) < 2 ** 31", "n * h * w + BM < 2 ** 31",
//     "4 * (k + BN) * (9 * c2 + 4 * c1 + 64) < 2 ** 31",
// ]
// where     = ["STAGES == (3 if BM == 128 else 4)"]
// define    = { WM = "32 if BM == 64 else 64", BIAS = "epilogue != 'none'", RELU = "epilogue == 'bias_relu'" }
// workspace = { filters = "k * (18 * c2 + 8 * c1) if dtype == 'bf16' else k * (36 * c2 + 16 * c1)" }
// flops     = "8 * n * h * w * k * (9 * c2 + 4 * c1)"
// compute_capability = "8.0"
//
// [[launch]]
// kernel = "upsample_concat_conv2d_sum_filters"
// grid   = ["cdiv(4 * k * (9 * c2 + 4 * c1), 256)"]
// block  = [256]
// args   = ["weight", "filters", "k", "c1", "c2"]
// setup  = true
//
// [[launch]]
// kernel = "upsample_concat_conv2d_nhwc_four_filters"
// grid   = ["4 * cdiv(n * h * w, BM) * cdiv(k, BN)"]
// block  = ["32 * (BM // WM) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["low", "skip", "filters", "bias?", "out", "n", "c1", "c2", "h", "w", "k"]
//
// [variant.nhwc_four_filters_bf16]
// title     = "2x2 filters of summed weights on the small image, one per pixel parity, save 10 of 27 products; bf16"
// builds_on = "nhwc_mma_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["c1 % 8 == 0 and c2 % 8 == 0"]
// tune      = { BM = [128, 256, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN and BM <= 2 * BN"]
// define.WN      = "32 if BN == 64 else 64"
// define.PER_SM  = "1 if BM == 256 else 3 if BN == 64 else 2"
//
// [variant.nhwc_four_filters_tf32]
// title     = "2x2 filters of summed weights on the small image, one per pixel parity, save 10 of 27 products; TF32"
// builds_on = "nhwc_mma_tf32"
// product   = "tf32"
// requires  = ["c1 % 4 == 0 and c2 % 4 == 0"]
// tune      = { BM = [128, 256, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN and BM <= 2 * BN"]
// define.WN      = "32 if BN == 64 else 64"
// define.PER_SM  = "1 if BM == 256 else 3 if BN == 64 else 2"
//
// [variant.nhwc_four_filters_tf32_corrected]
// title     = "nhwc_four_filters with float32 accuracy: one TF32 product plus two bf16 products of rounding errors"
// builds_on = "nhwc_mma_tf32_corrected"
// mechanism = ["operand_split"]
// product   = "tf32_corrected"
// requires  = ["c1 % 4 == 0 and c2 % 4 == 0", "9 * c2 + 4 * c1 >= 128"]
// tune      = { BM = [128, 64], BN = [64], STAGES = [3, 4] }
// define.WN      = "32"
// define.PER_SM  = "2 if BM == 128 else 3"
// ///
//
// If an image is enlarged twice by the nearest pixel, the three pixels under a filter row are only two pixels of the
// small image. For an output pixel of even y, one is in the row above and two are in its own row; for odd y, two are in
// its own row and one is in the row below. So weights for the same small pixel are added first (in float32), and the
// sums are a 2x2 filter over the small image: 4 products instead of 9 (17 instead of 27 if the skip has half as many
// channels, which keep their 9).
//
// The sums depend on the parities of y and x, so there are four filters. All pixels of a block have the same parities,
// and its rows of the output are two pixels apart. A first kernel computes the filters: a few percent of the work of
// layers with few pixels, and none if a network's weights stay the same. In bf16 the sums are rounded once more, as if
// the weights were given so; the error is within the rounding of the outputs. Limit: that of the previous variant. The
// idea is that of "sub-pixel" convolutions, in reverse: Shi et al. (2016).

#include <opbench/epilogue.cuh>
#include <opbench/stride2_loader.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Product<Format::PRODUCT> P;
typedef Block<P, BM, BN, WM, WN, STAGES> Tile;
typedef P::T T;

// weight [k][3][3][c2 + c1], filters [4][k][9 c2 + 4 c1]
extern "C" __global__ void __launch_bounds__(256)
    upsample_concat_conv2d_sum_filters(const T* __restrict__ weight, T* __restrict__ filters, int k, int c1, int c2) {
    const int at = blockIdx.x * 256 + threadIdx.x;
    if (at < 4 * k * (9 * c2 + 4 * c1)) filters[at] = summed_filter(weight, at, k, c1, c2);
}

// low [n][h][w][c1], skip [n][2h][2w][c2], bias [k], out [n][2h][2w][k]
extern "C" __global__ void __launch_bounds__(Tile::threads, PER_SM)
    upsample_concat_conv2d_nhwc_four_filters(const T* __restrict__ low, const T* __restrict__ skip,
                                             const T* __restrict__ filters,
#if BIAS
                                             const T* __restrict__ bias,
#endif
                                             T* __restrict__ out, int n, int c1, int c2, int h, int w, int k) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ ParityWindows<BM> windows;
    const int tiles_n = (k + BN - 1) / BN;  // neighbouring blocks share the pixels: filters change first, then parities
    const int parity = blockIdx.x / tiles_n % 4;
    const int m0 = (int)(blockIdx.x / tiles_n / 4) * BM, n0 = (int)(blockIdx.x % tiles_n) * BN;
    const Parity size = {n, c1, c2, h, w, parity / 2, parity % 2};
    ParityAndFilters<Tile> rows(shared, low, skip, filters + (size_t)parity * k * size.depth(), windows, size, m0, n0,
                                k);
    const Warp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile>(sum, shared, (size.depth() + Tile::bk - 1) / Tile::bk, warp, rows);
#if !BIAS
    const T* bias = nullptr;
#endif
    store_tile<Tile, BIAS, RELU, InOrder>(sum, shared, out, bias, m0 + warp.m, n0 + warp.n, size.pixels(), k, size);
}
