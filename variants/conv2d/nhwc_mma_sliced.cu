// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "sliced_k",
//     "double_buffer", "async_copy", "tensor_core", "overlapped_launch",
// ]
// tile      = { m = "BM", n = "BN", slices = "SLICES_K" }
// tune      = { BM = [32, 16, 48], BN = [32, 64], SLICES_K = [8, 4, 12], STAGES = [3, 2] }
// where     = [
//     """(BM, BN, SLICES_K, STAGES) in ((32, 32, 8, 3), (32, 32, 4, 3), (32, 64, 4, 3), (16, 32, 12, 3), \
//        (48, 32, 8, 2), (48, 32, 4, 3))""",
// ]
// supports.layout   = ["nhwc"]
// supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish", "bias_hardsigmoid", "bias_add", "bias_add_relu"]
// requires  = [
//     "r <= 16 and s <= 15", "((n * h + r) * w + s) * c < 2 ** 31", "n * p * q + BM < 2 ** 31",
//     "(k + BN) * (c * r * s + 64) < 2 ** 31",
// ]
// define    = { BIAS = "epilogue != 'none'", RESIDUAL = "'add' in epilogue", EPILOGUE = "epilogue" }
// compute_capability = "8.0"
//
// [[launch]]
// kernel = "conv2d_nhwc_mma_sliced"
// grid   = ["cdiv(n * p * q, BM) * cdiv(k, BN)"]
// block  = ["32 * SLICES_K"]
// shared = "SLICES_K * STAGES * (BM + BN) * 128"
// programmatic = true
// early  = ["weight"]
//
// [variant.nhwc_mma_bf16_sliced]
// title     = "nhwc_mma_bf16 with the depth split over the warps of a block, each with its own cp.async pipeline"
// builds_on = "nhwc_mma_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// define    = { ALIGNED = "c % 8 == 0" }
//
// [variant.nhwc_mma_tf32_sliced]
// title     = "nhwc_mma_tf32 with the depth split over the warps of a block, each with its own cp.async pipeline"
// builds_on = "nhwc_mma_tf32"
// product   = "tf32"
// define    = { ALIGNED = "c % 4 == 0" }
//
// [variant.nhwc_mma_tf32_corrected_sliced]
// title     = "nhwc_mma_tf32_corrected with the depth split over the warps of a block, each with its own pipeline"
// builds_on = "nhwc_mma_tf32_corrected"
// mechanism = ["operand_split"]
// product   = "tf32_corrected"
// requires  = ["c * r * s >= 128"]
// define    = { ALIGNED = "c % 4 == 0" }
// ///
//
// For one image, a deep layer has few tiles with long sums: 12 x 12 pixels x 384 channels are 60 tiles of 32 x 32, each
// with sums of thousands of products; 108 tiles of 16 x 32 use more of the multiprocessors. This is the previous
// variant, except that the warps of a block divide the depth of a tile. Each warp copies the operands that it
// multiplies, so the loop has no barrier, and a warp waits only for its own copies. The warps exchange their sums
// through shared memory and add them in the order of their parts of the depth. Unlike a depth that is split over
// blocks, this needs no workspace and no second kernel, but a small tile needs more bytes per product. Limit: the bytes
// that a multiprocessor gets from L2. Idea: CUTLASS, "sliced-K".

#include <opbench/image_rows.cuh>
#include <opbench/overlap.cuh>
#include <opbench/partials.cuh>
#include <opbench/products.cuh>
#include <opbench/slices.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Block<Product<Format::PRODUCT>, BM, BN, BM, BN, STAGES> Tile;  // of one warp
typedef Block<Product<Format::PRODUCT>, BM, BN, BM, BN, STAGES, SLICES_K> All;
typedef Tile::T T;

// image [n][h][w][c], weight [k][r][s][c], bias [k], residual and out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(All::threads, 1)
    conv2d_nhwc_mma_sliced(const T* image, const T* __restrict__ weight,
#if BIAS
                           const T* __restrict__ bias,
#endif
#if RESIDUAL
                           const T* residual,
#endif
                           T* __restrict__ out, int n, int c, int h, int w, int k, int r, int s, int stride,
                           int padding) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ Window windows[BM];
    const Image size(n, c, h, w, r, s, stride, padding);
    const int tiles_n = (k + BN - 1) / BN;  // neighbouring blocks share the rows of the image, the larger operand
    const int m0 = (int)(blockIdx.x / tiles_n) * BM, n0 = (int)(blockIdx.x % tiles_n) * BN;
    const int slice = threadIdx.x / 32;
    const SplitK part((size.depth() + Tile::bk - 1) / Tile::bk, slice, SLICES_K);
    unsigned char* const own = shared + slice * STAGES * Tile::stage_bytes;
    let_next_launch_start();
    fetch_ahead(weight + (size_t)n0 * size.depth(), (size_t)min(BN, k - n0) * size.depth() * sizeof(T),
                blockIdx.x / tiles_n, gridDim.x / tiles_n);
    ImageAndFilters<Tile, ALIGNED> rows(own, image, weight, windows, size, m0, n0, k, part.first * Tile::bk);
    const Warp<Tile> warp;
    Tile::Sums sum = {};
    wait_for_launches_before();
    multiply_stages<Tile>(sum, own, part.steps, warp, rows);
    __syncthreads();  // the sums overwrite the stages of all warps
#if !BIAS
    const T* bias = nullptr;
#endif
#if RESIDUAL
    const Residual<T> added{residual};
#else
    const NoResidual added;
#endif
    store_slices<All, BIAS, activation_of::EPILOGUE>(sum, shared, Warp<All>(), out, bias, m0, n0, size.pixels(), k,
                                                     added);
}
