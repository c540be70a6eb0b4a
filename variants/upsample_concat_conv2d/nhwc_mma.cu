// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "double_buffer", "async_copy", "tensor_core",
// ]
// tile      = { m = "BM", n = "BN" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"] }
// requires  = [
//     "r <= 16 and s <= 15", "4 * n * h * w * max(c1, c2) < 2 ** 31", "n * p * q + BM < 2 ** 31",
//     "(k + BN) * (c * r * s + 64) < 2 ** 31",
// ]
// where     = ["STAGES == (3 if BM == 128 else 4)"]
// define    = { WM = "32 if BM == 64 else 64", BIAS = "epilogue != 'none'", RELU = "epilogue == 'bias_relu'" }
// compute_capability = "8.0"
//
// [[launch]]
// kernel = "upsample_concat_conv2d_nhwc_mma"
// grid   = ["cdiv(n * p * q, BM) * cdiv(k, BN)"]
// block  = ["32 * (BM // WM) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
//
// [variant.nhwc_mma_bf16]
// title     = "implicit GEMM that reads skip and low directly: bf16 mma.sync, cp.async pipeline of STAGES stages"
// builds_on = "flat_divmod"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// tune      = { BM = [128, 256, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN and BM <= 2 * BN"]
// define.WN      = "32 if BN == 64 else 64"
// define.ALIGNED = "c1 % 8 == 0 and c2 % 8 == 0"
// define.PER_SM  = "1 if BM == 256 else 3 if BN == 64 and ALIGNED else 2"
//
// [variant.nhwc_mma_tf32]
// title     = "implicit GEMM that reads skip and low directly: TF32 mma.sync, cp.async pipeline of STAGES stages"
// builds_on = "flat_divmod"
// product   = "tf32"
// tune      = { BM = [128, 256, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN and BM <= 2 * BN"]
// define.WN      = "32 if BN == 64 else 64"
// define.ALIGNED = "c1 % 4 == 0 and c2 % 4 == 0"
// define.PER_SM  = "1 if BM == 256 else 3 if BN == 64 else 2"
//
// [variant.nhwc_mma_tf32_corrected]
// title     = "float32 accuracy (mma.sync): one TF32 product plus two bf16 products of the TF32 rounding errors"
// builds_on = "nhwc_mma_tf32"
// mechanism = ["operand_split"]
// product   = "tf32_corrected"
// requires  = ["c * r * s >= 128"]
// tune      = { BM = [128, 64], BN = [64], STAGES = [3, 4] }
// define.WN      = "32"
// define.ALIGNED = "c1 % 4 == 0 and c2 % 4 == 0"
// define.PER_SM  = "2 if BM == 128 else 3"
// ///
//
// This is conv2d's kernel of that name, but its 16-byte copies to shared memory read skip for the first c2 channels and
// low for the others. So neither the enlarged image nor the joined one is ever in memory. This saves writing c and
// reading c1 + c channels of every pixel, and a network does not need memory for its largest tensor.
//
// The address of a filter position (i, j) in low, at ((y + i) / 2, (x + j) / 2), is not a sum of a part for the pixel
// and a part for the position, because of the divisions. But it is (i / 2, j / 2) away from one of four origins, which
// the parities of i and j select. Each block computes five origins per pixel once (the fifth is in skip), so a copy
// needs about as many instructions as in a plain convolution. Four output pixels share a pixel of low, so most of low
// is read from L2. The error of tf32_corrected is 1.3e-6 of the output's norm at every depth, so other variants serve
// short depths. Limit: mma.sync, some three fifths of the rate of wgmma here. Ideas: CUTLASS, "implicit GEMM
// convolution" and example 28; Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores" (2022).

#include <opbench/epilogue.cuh>
#include <opbench/concat_loader.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Product<Format::PRODUCT> P;
typedef Block<P, BM, BN, WM, WN, STAGES> Tile;
typedef P::T T;

// low [n][h][w][c1], skip [n][2h][2w][c2], weight [k][r][s][c1+c2], bias [k], out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(Tile::threads, PER_SM)
    upsample_concat_conv2d_nhwc_mma(const T* __restrict__ low, const T* __restrict__ skip, const T* __restrict__ weight,
#if BIAS
                                    const T* __restrict__ bias,
#endif
                                    T* __restrict__ out, int n, int c1, int c2, int h, int w, int k, int r, int s,
                                    int padding) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ JoinedWindows<BM> windows;
    const Joined size(n, c1, c2, h, w, r, s, padding);
    const int tiles_n = (k + BN - 1) / BN;  // neighbouring blocks share the pixels, the larger operand
    const int m0 = (int)(blockIdx.x / tiles_n) * BM, n0 = (int)(blockIdx.x % tiles_n) * BN;
    JoinedAndFilters<Tile, ALIGNED> rows(shared, low, skip, weight, windows, size, m0, n0, k);
    const Warp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile>(sum, shared, (size.depth() + Tile::bk - 1) / Tile::bk, warp, rows);
#if !BIAS
    const T* bias = nullptr;
#endif
    store_tile<Tile, BIAS, RELU>(sum, shared, out, bias, m0 + warp.m, n0 + warp.n, size.pixels(), k);
}
