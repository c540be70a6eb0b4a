// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "warp_shuffle", "split_k",
//     "double_buffer", "async_copy", "tensor_core",
// ]
// tile      = { m = "BM", n = "BN", split = "SPLIT" }
// supports  = { layout = ["nhwc"], bias = ["no", "yes"] }
// requires  = [
//     "r <= 16 and s <= 15", "((n * h + r) * w + s) * c < 2 ** 31", "n * p * q + 256 < 2 ** 31",
//     "SPLIT * k * (c * r * s + 1) <= 2 ** 28", "SPLIT * cdiv(n * p * q, 32) < 2 ** 31",
// ]
// where     = ["BM <= BN", "STAGES == (3 if BN == 128 else 4)", "SPLIT > 8 or BM == 128", "SPLIT != 128 or BM == 64"]
// define    = { WM = "64 if BN == 128 else 32", BIAS = "1 if bias == 'yes' else 0" }
// compute_capability = "8.0"
// workspace = { parts = "SPLIT * k * c * r * s", bias_parts = "SPLIT * k" }
//
// [[launch]]
// kernel = "conv2d_wgrad_nhwc_mma_split"
// grid   = ["cdiv(k, BM) * cdiv(c * r * s + BIAS, BN)", "SPLIT"]
// block  = ["32 * (BM // WM) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["image", "dout", "parts", "bias_parts", "n", "c", "h", "w", "k", "r", "s", "stride", "padding", "p", "q"]
//
// [[launch]]
// kernel = "conv2d_wgrad_nhwc_add_parts"
// grid   = ["cdiv(k * c * r * s, 128 * (4 if c * r * s % 4 == 0 else 1)) + BIAS * cdiv(k, 128)"]
// block  = [128]
// args   = ["parts", "bias_parts", "dweight", "dbias?", "k", "c * r * s"]
//
// [variant.nhwc_mma_bf16_split]
// title     = "implicit GEMM by bf16 mma.sync, split-K over the pixels; ldmatrix transposes both operands"
// builds_on = "implicit_gemm_split"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// tune      = { BM = [64, 128], BN = [128, 64], STAGES = [3, 4], SPLIT = [32, 128, 8, 2] }
// define    = { WN = "32", C_ALIGNED = "c % 8 == 0", K_ALIGNED = "k % 8 == 0" }
//
// [variant.nhwc_mma_tf32_split]
// title     = "implicit GEMM by TF32 mma.sync, split-K over the pixels; 16-byte loads from shared memory"
// builds_on = "implicit_gemm_split"
// mechanism = ["bank_conflict_free"]
// product   = "tf32"
// tune      = { BM = [64, 128], BN = [128, 64], STAGES = [3, 4], SPLIT = [32, 128, 8, 2] }
// define    = { WN = "32", C_ALIGNED = "c % 4 == 0", K_ALIGNED = "k % 4 == 0" }
//
// [variant.nhwc_mma_3xtf32_split]
// title     = "3xTF32 (mma.sync): operands split into two TF32 numbers, three products, float32 accuracy"
// builds_on = "nhwc_mma_tf32_split"
// mechanism = ["bank_conflict_free", "operand_split"]
// product   = "tf32x3"
// requires  = ["n * p * q >= 4"]
// tune      = { BM = [64, 128], BN = [128, 64], STAGES = [3, 4], SPLIT = [32, 128, 8, 2] }
// define    = { WN = "32", C_ALIGNED = "c % 4 == 0", K_ALIGNED = "k % 4 == 0" }
//
// [variant.nhwc_mma_tf32_corrected_split]
// title     = "float32 accuracy (mma.sync): one TF32 product plus two bf16 products of the TF32 rounding errors"
// builds_on = "nhwc_mma_3xtf32_split"
// mechanism = ["bank_conflict_free", "operand_split"]
// product   = "tf32_corrected"
// requires  = ["n * p * q >= 128"]
// tune      = { BM = [64, 128], BN = [128, 64], STAGES = [3, 4], SPLIT = [32, 128, 8, 2] }
// define    = { WN = "32", C_ALIGNED = "c % 4 == 0", K_ALIGNED = "k % 4 == 0" }
// ///
//
// dout and the im2col matrix of the image are both stored by pixels, and the product sums over pixels. cp.async copies
// them in their stored order, 16 bytes of channels at a time, and they are transposed on their way to registers: in
// bf16 by ldmatrix, in TF32 by the order of rows and columns, such that a chunk of four words is one row or column of
// several tiles. A thread copies the same chunk of a filter's columns in every step, so its filter position is computed
// once. Pixels advance step by step: each lane computes the window of one of its warp's rows, without a division, and
// the other lanes get it by a shuffle. A column of ones yields the gradient of the bias.
//
// A layer has few weights, so SPLIT blocks share the pixels of a tile, and a second kernel adds their sums in index
// order. The tensor core rounds its sums towards zero, so they are added in float every few steps; then the error does
// not grow with the batch. Limit: mma.sync; with few or odd channels, loads of single elements. Ideas: CUTLASS,
// "implicit GEMM convolution" (wgrad) and its split K; Ootomo and Yokota, "Recovering single precision accuracy from
// Tensor Cores" (2022).

#include <opbench/depth_rows.cuh>
#include <opbench/gradients.cuh>
#include <opbench/image_rows.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef DeepProduct<Format::PRODUCT> P;
typedef Block<P, BM, BN, WM, WN, STAGES> Tile;
typedef P::T T;

// A pixel of dout; step() advances it through the batch by Tile::bk pixels.
struct Pixel {
    int item, row, column, left;  // left: pixels from here to the end of the block's range
    int next_item, next_row, next_column;

    __device__ __forceinline__ Pixel(int at, int end, const Image& size)
        : item(at / size.q / size.p), row(at / size.q % size.p), column(at % size.q), left(end - at),
          next_item(Tile::bk / size.q / size.p), next_row(Tile::bk / size.q % size.p), next_column(Tile::bk % size.q) {}
    __device__ __forceinline__ void step(const Image& size) {
        column += next_column, row += next_row, item += next_item, left -= Tile::bk;
        if (column >= size.q) column -= size.q, ++row;
        if (row >= size.p) row -= size.p, ++item;
    }
    __device__ __forceinline__ Window window(const Image& size) const {
        if (left <= 0) return {0, ~0u};
        const int y = row * size.stride - size.padding, x = column * size.stride - size.padding;
        const int first_i = min(max(-y, 0), size.r), last_i = max(min(size.h - y, size.r), first_i);
        const int first_j = min(max(-x, 0), size.s), last_j = max(min(size.w - x, size.s), first_j);
        const unsigned inside = ((1u << last_i) - (1u << first_i)) | ((1u << last_j) - (1u << first_j)) << 16;
        return {((item * size.h + y) * size.w + x) * size.c, ~inside};
    }
};

// The columns of a filter in its image, [pixels][depth], followed by a column of ones.
struct Patches {
    typedef WideB<Tile> Layout;
    static constexpr int vec = Tile::vec,
                         rows_per_warp = 32 / Layout::in_row;  // rows_per_warp: rows that a warp copies per pass
    static constexpr int numbers = C_ALIGNED ? 1 : vec;        // elements of a chunk that are addressed one by one
    static_assert(Layout::passes * rows_per_warp <= 32, "a lane looks up one row of a step");

    const T* image;
    const Image size;
    Pixel pixel;  // the pixel whose window this lane computes
    int to;
    int offset[numbers];         // of this thread's columns, relative to the start of a window
    unsigned tap_mask[numbers];  // bits of Window::outside that must not be set
    float fill_value[numbers];

    __device__ __forceinline__ Patches(const T* image, const Image& size, int first, int start, int end)
        : image(image), size(size), pixel(start + window_row(), end, size),
          to(Layout::swizzled_offset(threadIdx.x / Layout::in_row, threadIdx.x % Layout::in_row)) {
#pragma unroll
        for (int e = 0; e < numbers; ++e) {
            const int column = first + (int)threadIdx.x % Layout::in_row * vec + e, depth = size.depth();
            const Taps taps(min(column, depth), 0, size.c, size.r, size.s);
            offset[e] = (taps.i * size.w + taps.j) * size.c + taps.channel, tap_mask[e] = taps.tap_mask();
            fill_value[e] = BIAS && column == depth ? 1.0f : 0.0f;
        }
    }
    // The row of a step whose window this lane computes: that of pass lane / rows_per_warp.
    __device__ __forceinline__ static int window_row() {
        const int lane = threadIdx.x % 32;
        return threadIdx.x / 32 * rows_per_warp + lane % rows_per_warp + lane / rows_per_warp * Layout::fill_rows;
    }
    __device__ __forceinline__ void copy(unsigned char* stage) {
        const Window lane_window = pixel.window(size);
        // unrolling loads of single elements would take too many registers
        constexpr int unrolled = C_ALIGNED ? 16 : 1;
#pragma unroll unrolled
        for (int l = 0; l < Layout::passes; ++l) {
            const int lane = l * rows_per_warp + threadIdx.x % 32 / Layout::in_row;
            const int origin = __shfl_sync(0xffffffffu, lane_window.origin, lane);
            const unsigned outside = __shfl_sync(0xffffffffu, lane_window.outside, lane);
            unsigned char* const at = stage + Layout::pass(to, l);
            if (C_ALIGNED && !(BIAS && fill_value[0] != 0.0f)) {
                copy_chunk(at, image + (origin + offset[0]), outside & tap_mask[0] ? 0 : 16);
                continue;
            }
            union __align__(16) Chunk {
                T elements[vec];
                uint4 bits;
            } chunk;
            chunk.bits = make_uint4(0u, 0u, 0u, 0u);
#pragma unroll
            for (int e = 0; e < numbers; ++e)
                chunk.elements[e] = C_ALIGNED || outside & tap_mask[e] ? T(fill_value[e]) : image[origin + offset[e]];
            *reinterpret_cast<uint4*>(at) = chunk.bits;
        }
        pixel.step(size);
    }
};

typedef DepthRows<Tile, WideA<Tile>, K_ALIGNED> Gradients;

// image [n][h][w][c], dout [n][p][q][k], parts [SPLIT][k][r][s][c], bias_parts [SPLIT][k]
extern "C" __global__ void __launch_bounds__(Tile::threads)
    conv2d_wgrad_nhwc_mma_split(const T* __restrict__ image, const T* __restrict__ dout, float* __restrict__ parts,
                                float* __restrict__ bias_parts, int n, int c, int h, int w, int k, int r, int s,
                                int stride, int padding, int p, int q) {
    extern __shared__ __align__(128) unsigned char shared[];
    const Image size(n, c, h, w, r, s, stride, padding);
    const int depth = size.depth(), pixels = size.pixels(), tiles_n = (depth + BIAS + BN - 1) / BN;
    const int m0 = (int)(blockIdx.x / tiles_n) * BM, n0 = (int)(blockIdx.x % tiles_n) * BN;
    const SplitK part((pixels + Tile::bk - 1) / Tile::bk, blockIdx.y, SPLIT);
    const int start = part.first * Tile::bk, end = min(pixels, (part.first + part.steps) * Tile::bk);
    BothByDepth<Tile, Gradients, Patches> rows(shared, Gradients(dout, m0, k, start, end),
                                               Patches(image, size, n0, start, end));
    const DepthWarp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile>(sum, shared, part.steps, warp, rows);
    float* const block_parts = parts + (size_t)blockIdx.y * k * depth;
    store_tile<Tile, false, false, DepthWarp<Tile>::Order>(sum, shared, block_parts, (const T*)nullptr, m0 + warp.m,
                                                           n0 + warp.n, k, depth);
    if (BIAS)
        store_column<Tile, DepthWarp<Tile>::Order>(sum, bias_parts + (size_t)blockIdx.y * k, m0 + warp.m, n0 + warp.n,
                                                   k, depth);
}

// Add the blocks' sums in index order: of dweight [k][depth] and, in the last blocks, of dbias [k].
extern "C" __global__ void __launch_bounds__(128)
    conv2d_wgrad_nhwc_add_parts(const float* __restrict__ parts, const float* __restrict__ bias_parts,
                                float* __restrict__ dweight,
#if BIAS
                                float* __restrict__ dbias,
#endif
                                int k, int depth) {
#if !BIAS
    float* dbias = nullptr;
#endif
    add_weight_parts<SPLIT, BIAS>(parts, bias_parts, dweight, dbias, k, depth);
}
