// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "double_buffer", "async_copy", "tensor_core", "overlapped_launch",
// ]
// tile      = { m = "BM", n = "BN" }
// supports.layout   = ["nhwc"]
// supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish", "bias_hardsigmoid", "bias_add", "bias_add_relu"]
// requires  = [
//     "r <= 16 and s <= 15", "((n * h + r) * w + s) * c < 2 ** 31", "n * p * q + BM < 2 ** 31",
//     "(k + BN) * (c * r * s + 64) < 2 ** 31",
// ]
// define.WM       = "32 if BM == 64 else 64"
// define.BIAS     = "epilogue != 'none'"
// define.RESIDUAL = "'add' in epilogue"
// define.EPILOGUE = "epilogue"
// compute_capability = "8.0"
//
// [[launch]]
// kernel = "conv2d_nhwc_mma"
// grid   = ["cdiv(n * p * q, BM) * cdiv(k, BN)"]
// block  = ["32 * (BM // WM) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
// programmatic = true
//
// [variant.nhwc_mma_bf16]
// title     = "implicit GEMM: bf16 mma.sync, cp.async pipeline of STAGES stages, swizzled shared memory"
// builds_on = "nhwc_implicit_gemm"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// tune      = { BM = [128, 256, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN and BM <= 2 * BN", "STAGES == (3 if BM == 128 else 4)"]
// define.WN      = "32 if BN == 64 else 64"
// define.PER_SM  = "1 if BM == 256 else 3 if BN == 64 else 2"
// define.ALIGNED = "c % 8 == 0"
//
// [variant.nhwc_mma_tf32]
// title     = "implicit GEMM: TF32 mma.sync, cp.async pipeline; floats are rounded to TF32 in registers"
// builds_on = "nhwc_implicit_gemm"
// product   = "tf32"
// tune      = { BM = [128, 256, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN and BM <= 2 * BN", "STAGES == (3 if BM == 128 else 4)"]
// define.WN      = "32 if BN == 64 else 64"
// define.PER_SM  = "1 if BM == 256 else 3 if BN == 64 else 2"
// define.ALIGNED = "c % 4 == 0"
//
// [variant.nhwc_mma_3xtf32]
// title     = "3xTF32 (mma.sync): operands split into two TF32 numbers, three products, float32 accuracy"
// builds_on = "nhwc_mma_tf32"
// mechanism = ["operand_split"]
// product   = "tf32x3"
// requires  = ["c * r * s >= 4"]
// tune      = { BM = [128, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN", "STAGES == (3 if BM == 128 and BN == 64 else 4)"]
// define    = { WN = "32", PER_SM = "1 if BN == 128 else 2 if BM == 128 else 3", ALIGNED = "c % 4 == 0" }
//
// [variant.nhwc_mma_tf32_corrected]
// title     = "float32 accuracy (mma.sync): one TF32 product plus two bf16 products of the TF32 rounding errors"
// builds_on = "nhwc_mma_3xtf32"
// mechanism = ["operand_split"]
// product   = "tf32_corrected"
// requires  = ["c * r * s >= 128"]
// tune      = { BM = [128, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN", "STAGES == (3 if BM == 128 and BN == 64 else 4)"]
// define    = { WN = "32", PER_SM = "1 if BN == 128 else 2 if BM == 128 else 3", ALIGNED = "c % 4 == 0" }
// ///
//
// The tensor cores multiply eight times as fast as CUDA cores, so everything else must take few instructions. A warp's
// 64 x 64 tile reads 8 KB of shared memory per 64 x 64 x 32 products; ldmatrix loads four 8 x 8 matrices at once;
// cp.async copies 16 bytes of neighbouring channels from L2 to shared memory without a register, STAGES - 1 steps
// ahead. The depth is one sequence of filter positions and channels, so only its last step can contain zeros. A bit
// mask per pixel tells which filter positions are inside the image. Limit: mma.sync, which reaches some three fifths of
// the rate of wgmma here, and the bandwidth of shared memory, most with BN = 64; for 3xtf32 also the splitting, eight
// instructions per four words. Ideas: CUTLASS, "implicit GEMM convolution" and example 28; Ootomo and Yokota,
// "Recovering single precision accuracy from Tensor Cores" (2022).

#include <opbench/epilogue.cuh>
#include <opbench/products.cuh>
#include <opbench/image_rows.cuh>
#include <opbench/overlap.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Product<Format::PRODUCT> P;
typedef Block<P, BM, BN, WM, WN, STAGES> Tile;
typedef P::T T;

// image [n][h][w][c], weight [k][r][s][c], bias [k], residual and out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(Tile::threads, PER_SM)
    conv2d_nhwc_mma(const T* image, const T* __restrict__ weight,
#if BIAS
                    const T* __restrict__ bias,
#endif
#if RESIDUAL
                    const T* residual,
#endif
                    T* __restrict__ out, int n, int c, int h, int w, int k, int r, int s, int stride, int padding) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ Window windows[BM];
    const Image size(n, c, h, w, r, s, stride, padding);
    const int tiles_n = (k + BN - 1) / BN;  // neighbouring blocks share the rows of the image, the larger operand
    const int m0 = (int)(blockIdx.x / tiles_n) * BM, n0 = (int)(blockIdx.x % tiles_n) * BN;
    let_next_launch_start();
    wait_for_launches_before();
    ImageAndFilters<Tile, ALIGNED> rows(shared, image, weight, windows, size, m0, n0, k);
    const Warp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile>(sum, shared, (size.depth() + Tile::bk - 1) / Tile::bk, warp, rows);
#if !BIAS
    const T* bias = nullptr;
#endif
#if RESIDUAL
    const Residual<T> added{residual};
#else
    const NoResidual added;
#endif
    store_tile<Tile, BIAS, activation_of::EPILOGUE>(sum, shared, out, bias, m0 + warp.m, n0 + warp.n, size.pixels(), k,
                                                    SameRows(), added);
}
