// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "double_buffer", "async_copy",
//     "tensor_core",
// ]
// tile      = { m = "BM", n = "BN" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "add", "mask", "add_mask"] }
// requires  = [
//     "stride == 1 and r == s", "r <= 15", "((n * p + r) * q + s) * k < 2 ** 31", "n * h * w + BM < 2 ** 31",
//     "(c + BN) * (k * r * s + 64) < 2 ** 31",
// ]
// compute_capability = "8.0"
// define.WM        = "32 if BM == 64 else 64"
// define.EPILOGUE  = "'plain' if epilogue == 'none' else epilogue"
// define.WITH_SKIP = "epilogue in ('add', 'add_mask')"
// define.WITH_OUT  = "epilogue in ('mask', 'add_mask')"
// workspace = { turned = "cdiv(k * c * r * s, 2) if dtype == 'bf16' else k * c * r * s" }
//
// [[launch]]
// kernel = "conv2d_dgrad_turn_filters"
// grid   = ["cdiv(k, 32) * cdiv(c, 32)", "r * s"]
// block  = [32, 8]
// args   = ["weight", "turned", "k", "c", "r * s"]
//
// [[launch]]
// kernel = "conv2d_dgrad_nhwc_mma"
// grid   = ["cdiv(n * h * w, BM) * cdiv(c, BN)"]
// block  = ["32 * (BM // WM) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["dout", "turned", "skip?", "out?", "dimage", "n", "k", "p", "q", "c", "r", "r - 1 - padding"]
//
// [variant.nhwc_mma_bf16]
// title     = "implicit GEMM by bf16 mma.sync: convolution of dout with rotated and transposed filters"
// builds_on = "implicit_gemm"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// tune      = { BM = [128, 256, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN and BM <= 2 * BN", "STAGES == (3 if BM == 128 else 4)"]
// define.WN      = "32 if BN == 64 else 64"
// define.PER_SM  = "1 if BM == 256 else 3 if BN == 64 else 2"
// define.ALIGNED = "k % 8 == 0"
//
// [variant.nhwc_mma_tf32]
// title     = "implicit GEMM by TF32 mma.sync: convolution of dout with rotated and transposed filters"
// builds_on = "implicit_gemm"
// mechanism = ["bank_conflict_free"]
// product   = "tf32"
// tune      = { BM = [128, 256, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN and BM <= 2 * BN", "STAGES == (3 if BM == 128 else 4)"]
// define.WN      = "32 if BN == 64 else 64"
// define.PER_SM  = "1 if BM == 256 else 3 if BN == 64 else 2"
// define.ALIGNED = "k % 4 == 0"
//
// [variant.nhwc_mma_3xtf32]
// title     = "3xTF32 (mma.sync): operands split into two TF32 numbers, three products, float32 accuracy"
// builds_on = "nhwc_mma_tf32"
// mechanism = ["bank_conflict_free", "operand_split"]
// product   = "tf32x3"
// requires  = ["k * r * s >= 4"]
// tune      = { BM = [128, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN", "STAGES == (3 if BM == 128 and BN == 64 else 4)"]
// define    = { WN = "32", PER_SM = "1 if BN == 128 else 2 if BM == 128 else 3", ALIGNED = "k % 4 == 0" }
//
// [variant.nhwc_mma_tf32_corrected]
// title     = "float32 accuracy (mma.sync): one TF32 product plus two bf16 products of the TF32 rounding errors"
// builds_on = "nhwc_mma_3xtf32"
// mechanism = ["bank_conflict_free", "operand_split"]
// product   = "tf32_corrected"
// requires  = ["k * r * s >= 128"]
// tune      = { BM = [128, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN", "STAGES == (3 if BM == 128 and BN == 64 else 4)"]
// define    = { WN = "32", PER_SM = "1 if BN == 128 else 2 if BM == 128 else 3", ALIGNED = "k % 4 == 0" }
// ///
//
// At stride 1, the gradient of the image is itself a convolution: of dout, padded by r - 1 - padding (which may be
// negative), with filters that are rotated by 180 degrees and whose input and output channels are swapped. So a first
// kernel rotates and transposes the filters, which is little work compared with the products. The second kernel is the
// forward variant conv2d/nhwc_mma with another epilogue: it adds an existing gradient, or applies the mask of a ReLU,
// where the result is stored. Limit: that of the forward variant, and the launch that rotates the filters. Other
// strides are computed by implicit_gemm and nhwc_mma_strided. Ideas: CUTLASS, "implicit GEMM convolution"; Ootomo and
// Yokota, "Recovering single precision accuracy from Tensor Cores" (2022).

#include <opbench/gradients.cuh>
#include <opbench/image_rows.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Product<Format::PRODUCT> P;
typedef Block<P, BM, BN, WM, WN, STAGES> Tile;
typedef P::T T;

// weight [k][positions][c], turned [c][positions][k], positions in reverse order
extern "C" __global__ void __launch_bounds__(256)
    conv2d_dgrad_turn_filters(const T* __restrict__ weight, T* __restrict__ turned, int k, int c, int positions) {
    turn_filters(weight, turned, k, c, positions);
}

// dout [n][p][q][k], turned [c][r][r][k], skip, out and dimage [n][h][w][c]; border: dout's padding
extern "C" __global__ void __launch_bounds__(Tile::threads, PER_SM)
    conv2d_dgrad_nhwc_mma(const T* __restrict__ dout, const T* __restrict__ turned,
#if WITH_SKIP
                          const T* __restrict__ skip,
#endif
#if WITH_OUT
                          const T* __restrict__ out,
#endif
                          T* __restrict__ dimage, int n, int k, int p, int q, int c, int r, int border) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ Window windows[BM];
    const Image size(n, k, p, q, r, r, 1, border);
    const int tiles_n = (c + BN - 1) / BN;  // neighbouring blocks share the rows of dout, the larger operand
    const int m0 = (int)(blockIdx.x / tiles_n) * BM, n0 = (int)(blockIdx.x % tiles_n) * BN;
    ImageAndFilters<Tile, ALIGNED> rows(shared, dout, turned, windows, size, m0, n0, c);
#if WITH_SKIP && WITH_OUT
    const SkipAndOut<T> other = {skip, out};
#elif WITH_SKIP
    const T* other = skip;
#elif WITH_OUT
    const T* other = out;
#else
    const T* other = nullptr;
#endif
    const Warp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile>(sum, shared, (size.depth() + Tile::bk - 1) / Tile::bk, warp, rows);
    store_gradient<Tile, EPILOGUE>(sum, shared, dimage, other, m0 + warp.m, n0 + warp.n, size.pixels(), c);
}
