// /// opbench
// title     = "fused Winograd that also transforms the image, in shared memory: a workspace only for filters"
// builds_on = "nhwc_winograd_3xtf32_fused"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "fused",
//     "fewer_operations", "double_buffer", "async_copy", "tensor_core", "operand_split",
// ]
// tune      = { BN = [64, 128], STAGES = [2, 4] }
// where     = ["STAGES == (2 if BN == 64 else 4)"]  # two blocks per multiprocessor, or one
// define    = { BIAS = "epilogue != 'none'", RELU = "epilogue == 'bias_relu'" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32"] }
// requires  = [
//     "r == 3 and s == 3 and stride == 1", "c % 8 == 0", "16 * (k + BN) * c < 2 ** 31", "n * p * q < 2 ** 31",
// ]
// precision = "f32"
// product   = "tf32x3"
// compute_capability = "8.0"
// workspace = { filters = "16 * k * c" }
//
// [[launch]]
// kernel = "conv2d_winograd_filters"
// grid   = ["cdiv(k * c // 4, 128)"]
// block  = [128]
// args   = ["weight", "filters", "k", "c"]
// setup  = true
//
// [[launch]]
// kernel = "conv2d_winograd_outputs"
// grid   = ["n * cdiv(p, 16) * cdiv(q, 16) * cdiv(k, BN)"]
// block  = ["2 * BN"]
// shared = "2 * 18 * 18 * 36 * 4 + STAGES * BN * 128"
// args   = ["image", "filters", "bias?", "out", "n", "c", "h", "w", "k", "p", "q", "padding"]
// ///
//
// The workspace of the patches in the previous variant is four times the image, written and read. Here a block keeps 18
// x 18 pixels of 32 channels in shared memory, enough for 16 x 16 outputs. Each warp computes the operands of its mma
// instructions from four pixels, by three additions, once per product; meanwhile the next 32 channels are loaded.
// Limit: mma.sync's TF32 rate, and shared memory, which is busy half of that time; if the output size is not a multiple
// of 16, parts of the blocks are wasted. Ideas: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks"
// (2015), which also fuses all steps.

#include <opbench/products.cuh>
#include <opbench/winograd_image.cuh>
using namespace opbench;

// tiles of 2 x 2 outputs; the stages hold filters only
typedef Block<Product<Format::PRODUCT>, 64, BN, 32, 32, STAGES> Tile;

// weight [k][3][3][c] -> filters [4][4][k][c]; a thread has four channels of one filter.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_winograd_filters(const float* __restrict__ weight, float* __restrict__ filters, int k, int c) {
    transform_filters<3>(weight, k, c, [&](size_t vector, float4 value) { store_interleaved(filters, vector, value); });
}

// image [n][h][w][c], filters [4][4][k][c], bias [k] -> out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(Tile::threads, 256 / Tile::threads)
    conv2d_winograd_outputs(const float* __restrict__ image, const float* __restrict__ filters,
#if BIAS
                            const float* __restrict__ bias,
#endif
                            float* __restrict__ out, int n, int c, int h, int w, int k, int p, int q, int padding) {
    extern __shared__ __align__(16) float pixels[];
#if !BIAS
    const float* bias = nullptr;
#endif
    convolve_image<Tile>(pixels, image, filters, n, c, h, w, k, p, q, padding, [&](size_t at, int column, float4 sum) {
        store_four<BIAS, RELU>(out + at, sum, bias + (BIAS ? column : 0), k - column, k % 4 == 0);
    });
}
