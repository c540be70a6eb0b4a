// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "double_buffer", "async_copy",
//     "tensor_core",
// ]
// tile      = { m = "BM", n = "BN" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "add", "mask", "add_mask"] }
// requires  = [
//     "1 < stride <= 16", "r <= 15 and s <= 15", "((n * p + r) * q + s) * k < 2 ** 31", "n * h * w + BM < 2 ** 31",
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
// kernel = "conv2d_dgrad_turn_phases"
// grid   = ["cdiv(k, 32) * cdiv(c, 32)", "r * s"]
// block  = [32, 8]
// args   = ["weight", "turned", "k", "c", "r", "s", "stride"]
//
// [[launch]]
// kernel = "conv2d_dgrad_nhwc_mma_strided"
// grid   = ["cdiv(n * cdiv(h, stride) * cdiv(w, stride), BM) * cdiv(c, BN)", "stride * stride"]
// block  = ["32 * (BM // WM) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
// args   = [
//     "dout", "turned", "skip?", "out?", "dimage", "n", "k", "p", "q", "c", "h", "w", "r", "s", "stride", "padding",
// ]
//
// [variant.nhwc_mma_bf16_strided]
// title     = "implicit GEMM by bf16 mma.sync for strides: one convolution per residue of row and column"
// builds_on = "implicit_gemm"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// tune      = { BM = [64, 128], BN = [64, 128], STAGES = [4, 3] }
// where     = ["BM >= BN", "STAGES == (3 if BM == 128 else 4)"]
// define.WN      = "32 if BN == 64 else 64"
// define.PER_SM  = "3 if BN == 64 else 2"
// define.ALIGNED = "k % 8 == 0"
//
// [variant.nhwc_mma_tf32_strided]
// title     = "implicit GEMM by TF32 mma.sync for strides: one convolution per residue of row and column"
// builds_on = "implicit_gemm"
// mechanism = ["bank_conflict_free"]
// product   = "tf32"
// tune      = { BM = [64, 128], BN = [64, 128], STAGES = [4, 3] }
// where     = ["BM >= BN", "STAGES == (3 if BM == 128 else 4)"]
// define.WN      = "32 if BN == 64 else 64"
// define.PER_SM  = "3 if BN == 64 else 2"
// define.ALIGNED = "k % 4 == 0"
//
// [variant.nhwc_mma_3xtf32_strided]
// title     = "3xTF32 (mma.sync) for strides: operands split into two TF32 numbers, float32 accuracy"
// builds_on = "nhwc_mma_tf32_strided"
// mechanism = ["bank_conflict_free", "operand_split"]
// product   = "tf32x3"
// requires  = ["k * r * s >= 4"]
// tune      = { BM = [64, 128], BN = [64, 128], STAGES = [4, 3] }
// where     = ["BM >= BN", "STAGES == (3 if BM == 128 and BN == 64 else 4)"]
// define    = { WN = "32", PER_SM = "1 if BN == 128 else 2 if BM == 128 else 3", ALIGNED = "k % 4 == 0" }
//
// [variant.nhwc_mma_tf32_corrected_strided]
// title     = "float32 accuracy (mma.sync) for strides: one TF32 product plus two bf16 products of rounding errors"
// builds_on = "nhwc_mma_3xtf32_strided"
// mechanism = ["bank_conflict_free", "operand_split"]
// product   = "tf32_corrected"
// requires  = ["k * r * s >= 128"]
// tune      = { BM = [64, 128], BN = [64, 128], STAGES = [4, 3] }
// where     = ["BM >= BN", "STAGES == (3 if BM == 128 and BN == 64 else 4)"]
// define    = { WN = "32", PER_SM = "1 if BN == 128 else 2 if BM == 128 else 3", ALIGNED = "k % 4 == 0" }
// ///
//
// With a stride, filter row i only contributes to pixels of rows y with (y + padding) % stride == i % stride. So the
// pixels form stride * stride phases, by the remainders of row and column. The gradient of each phase is a convolution
// at stride 1: of dout, with the filter rows and columns that have the phase's remainders, rotated by 180 degrees, with
// input and output channels swapped. All phases together need as many multiply-adds as the convolution itself;
// implicit_gemm needs stride * stride times as many, most of them with zeros. A first kernel stores the filters in the
// order of the phases. The second kernel computes all phases; those with the most filter positions start first. Limit:
// few blocks for a small image, each with another depth. Idea: NVIDIA CUTLASS, "strided dgrad".

#include <opbench/gradients.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
#include <opbench/strided_phases.cuh>
using namespace opbench;

typedef Product<Format::PRODUCT> P;
typedef Block<P, BM, BN, WM, WN, STAGES> Tile;
typedef P::T T;

// Return the number of filter rows i < r with i % stride < residue.
__device__ __forceinline__ int count_below_residue(int r, int stride, int residue) {
    return r / stride * residue + min(r % stride, residue);
}

// weight [k][r][s][c]; turned: for each phase [c][its positions][k], positions in reverse order
extern "C" __global__ void __launch_bounds__(256)
    conv2d_dgrad_turn_phases(const T* __restrict__ weight, T* __restrict__ turned, int k, int c, int r, int s,
                             int stride) {
    const int i = blockIdx.y / s, j = blockIdx.y % s, a = i % stride, b = j % stride;
    const int down = (r - a + stride - 1) / stride, across = (s - b + stride - 1) / stride;
    const int before = count_below_residue(r, stride, a) * s + down * count_below_residue(s, stride, b);
    const int place = (down - 1 - i / stride) * across + across - 1 - j / stride;
    turn_position(weight, turned + (size_t)before * c * k, k, c, r * s, blockIdx.y, down * across, place);
}

// dout [n][p][q][k], turned as above, skip, out and dimage [n][h][w][c]
extern "C" __global__ void __launch_bounds__(Tile::threads, PER_SM)
    conv2d_dgrad_nhwc_mma_strided(const T* __restrict__ dout, const T* __restrict__ turned,
#if WITH_SKIP
                                  const T* __restrict__ skip,
#endif
#if WITH_OUT
                                  const T* __restrict__ out,
#endif
                                  T* __restrict__ dimage, int n, int k, int p, int q, int c, int h, int w, int r, int s,
                                  int stride, int padding) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ Window windows[BM];
    const int a = blockIdx.y / stride, b = blockIdx.y % stride;
    const Residue down(a, r, h, stride, padding), across(b, s, w, stride, padding);
    const Phase phase(down, across, n, k, p, q, h, w, stride);
    const int tiles_n = (c + BN - 1) / BN;  // neighbouring blocks share the rows of dout, the larger operand
    const int m0 = (int)(blockIdx.x / tiles_n) * BM, n0 = (int)(blockIdx.x % tiles_n) * BN;
    if (m0 >= phase.pixels()) return;
    const int before = count_below_residue(r, stride, a) * s + down.taps * count_below_residue(s, stride, b);
    ImageAndFilters<Tile, ALIGNED, Phase> rows(shared, dout, turned + (size_t)before * c * k, windows, phase, m0, n0,
                                               c);
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
    multiply_stages<Tile>(sum, shared, (phase.depth() + Tile::bk - 1) / Tile::bk, warp, rows);
    store_gradient<Tile, EPILOGUE>(sum, shared, dimage, other, m0 + warp.m, n0 + warp.n, phase.pixels(), c, phase);
}
