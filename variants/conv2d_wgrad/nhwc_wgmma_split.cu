// /// opbench
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "split_k", "double_buffer", "tma", "tensor_core",
//     "warp_specialised",
// ]
// tile      = { m = "BM", n = "BN", split = "SPLIT" }
// supports  = { layout = ["nhwc"], bias = ["no", "yes"] }
// requires  = [
//     "c % 8 == 0 and k % 8 == 0", "r <= 16 and s <= 16 and padding <= 16 and stride <= 8", "n * p * q + 64 < 2 ** 31",
//     "PARTS * k * (c * r * s + 1) <= 2 ** 28", "SPLIT * cdiv(n * p * q, 64) < 2 ** 31", "n * h * w * c < 2 ** 31",
// ]
// compute_capability = "9.0a"
// tune      = { BM = [128, 64], BN = [192, 128], SPLIT = [11, 44, 22, 4, 1] }
// workspace = { parts = "PARTS * k * c * r * s", bias_parts = "PARTS * k" }
//
// [define]
// PIECE  = "32 if c <= 32 else 64"
// STAGES = "196608 // ((BM + BN) * 128)"
// PARTS  = "SPLIT * 128 // BM"
// BIAS   = "1 if bias == 'yes' else 0"
//
// [variant.nhwc_wgmma_split_bf16]
// title     = "implicit GEMM: bf16 wgmma and TMA in im2col mode, split-K over the pixels; wgmma transposes both"
// builds_on = "nhwc_mma_bf16_split"
// mechanism = ["bank_conflict_free"]
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// define    = { ROUNDED = "0" }
// tensor_maps.map_dout  = { tensor = "dout", dims = ["k", "n * p * q"], box = [64, 64] }
//
// [variant.nhwc_wgmma_split_bf16.tensor_maps.map_image]
// tensor          = "image"
// element_strides = [1, "stride", "stride", 1]
// swizzle         = "'64B' if PIECE == 32 else '128B'"
//
// [variant.nhwc_wgmma_split_bf16.tensor_maps.map_image.im2col]
// lower    = ["-padding", "-padding"]
// upper    = ["padding - s + 1", "padding - r + 1"]
// channels = "PIECE"
// pixels   = 64
//
// [[variant.nhwc_wgmma_split_bf16.launch]]
// kernel = "conv2d_wgrad_nhwc_wgmma_split"
// grid   = ["cdiv(k, BM) * cdiv(r * s * cdiv(c, PIECE), BN // PIECE)", "SPLIT"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 128 + 16) + 1024"
// args   = ["map_dout", "map_image", "parts", "bias_parts", "n", "p", "q", "k", "c", "r", "s", "stride", "padding"]
//
// [[variant.nhwc_wgmma_split_bf16.launch]]
// kernel = "conv2d_wgrad_add_parts"
// grid   = ["cdiv(k * c * r * s, 512) + BIAS * cdiv(k, 128)"]
// block  = [128]
// args   = ["parts", "bias_parts", "dweight", "dbias?", "k", "c * r * s"]
//
// [variant.nhwc_wgmma_split_f16]
// title     = "TF32 accuracy by f16 wgmma at twice the rate: separate kernels round and scale each channel"
// mechanism = ["converted_ahead"]
// builds_on = "nhwc_mma_tf32_split"
// product   = "f16"
// precision = "tf32"
// define    = { ROUNDED = "1" }
// tensor_maps.map_dout  = { tensor = "dout_halves", type = "f16", dims = ["k", "n * p * q"], box = [64, 64] }
//
// [variant.nhwc_wgmma_split_f16.workspace]
// image_halves    = "n * h * w * c // 2"
// dout_halves     = "n * p * q * k // 2"
// largest         = "c + k"
// image_exponents = "c"
// dout_exponents  = "k"
//
// [variant.nhwc_wgmma_split_f16.tensor_maps.map_image]
// tensor          = "image_halves"
// type            = "f16"
// dims            = ["c", "w", "h", "n"]
// element_strides = [1, "stride", "stride", 1]
// swizzle         = "'64B' if PIECE == 32 else '128B'"
//
// [variant.nhwc_wgmma_split_f16.tensor_maps.map_image.im2col]
// lower    = ["-padding", "-padding"]
// upper    = ["padding - s + 1", "padding - r + 1"]
// channels = "PIECE"
// pixels   = 64
//
// [[variant.nhwc_wgmma_split_f16.launch]]
// zero = "largest"
//
// [[variant.nhwc_wgmma_split_f16.launch]]
// kernel = "conv2d_wgrad_find"
// grid   = ["cdiv(max(c, k), 1024)", "min(cdiv(n * max(h * w * c, p * q * k), 8192), 264)", 2]
// block  = [256]
// args   = ["image", "dout", "largest", "n * h * w", "c", "n * p * q", "k"]
//
// [[variant.nhwc_wgmma_split_f16.launch]]
// kernel = "conv2d_wgrad_round"
// grid   = ["cdiv(max(c, k), 1024)", "min(cdiv(n * max(h * w * c, p * q * k), 8192), 528)", 2]
// block  = [256]
// args   = [
//     "image", "dout", "largest", "image_halves", "dout_halves", "image_exponents", "dout_exponents", "n * h * w", "c",
//     "n * p * q", "k",
// ]
//
// [[variant.nhwc_wgmma_split_f16.launch]]
// kernel = "conv2d_wgrad_nhwc_wgmma_split"
// grid   = ["cdiv(k, BM) * cdiv(r * s * cdiv(c, PIECE), BN // PIECE)", "SPLIT"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 128 + 16) + 1024"
// args   = [
//     "map_dout", "map_image", "dout_exponents", "image_exponents", "parts", "bias_parts", "n", "p", "q", "k", "c",
//     "r", "s", "stride", "padding",
// ]
//
// [[variant.nhwc_wgmma_split_f16.launch]]
// kernel = "conv2d_wgrad_add_parts"
// grid   = ["cdiv(k * c * r * s, 512) + BIAS * cdiv(k, 128)"]
// block  = [128]
// args   = ["parts", "bias_parts", "dweight", "dbias?", "k", "c * r * s"]
// ///
//
// The depth of the product is all pixels, and both operands are stored with channels innermost. Neither is transposed
// in memory, because wgmma also reads 16-bit operands by rows of 64 m or n. TMA copies 64 pixels of dout, and in im2col
// mode the 64 pixels that a filter position multiplies with them, 64 or 32 channels of each. The columns of a tile
// consist of several such copies, of any filter positions and channels, so layers of 64 or 32 channels fill the tiles.
// (With 96 channels, too, copies of 64 are faster, although a quarter of them is empty: TMA takes as long for a row of
// 64 bytes as for 128.) With BM = 64, each of the two warpgroups multiplies half of the pixels. A layer has few
// weights, so SPLIT blocks divide the pixels of a tile, and a second kernel adds their sums in index order. The tensor
// core truncates as it adds, so its sums are added in float every 512 pixels, and the error does not grow with the
// batch. Columns of ones yield the gradient of the bias, in the blocks that have the first columns. TF32 wgmma reads
// operands only by k, so the variant for TF32 uses f16, which has as many mantissa bits. A power of two per channel,
// the same for all pixels, scales the largest magnitude to 2^15; then f16 represents 39 binades below it. Limit: L2,
// from which the image is read r s times; with f16 also the passes over large images. After CUTLASS's implicit GEMM
// (wgrad) for sm90.

#include <opbench/gradients.cuh>
#include <opbench/hi_lo_split.cuh>
#include <opbench/ring.cuh>
using namespace opbench;

typedef Ring<STAGES, (BM + BN) * 128> Stages;
constexpr int pieces = BN / PIECE, row = PIECE * 2, piece = 64 * row;  // of 64 pixels, some channels each
constexpr int of_dout = 64 * 128, promoted = 8;                        // steps of the tensor core's own sum
constexpr int slices = BM / 32;  // of 16 pixels, of a stage's four, that a warpgroup has

// image [n][h][w][c], dout [n][p][q][k], parts [PARTS][k][r s c], bias_parts [PARTS][k]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv2d_wgrad_nhwc_wgmma_split(const __grid_constant__ TensorMap map_dout,
                                  const __grid_constant__ TensorMap map_image,
#if ROUNDED
                                  const int* __restrict__ dout_exponents, const int* __restrict__ image_exponents,
#endif
                                  float* __restrict__ parts, float* __restrict__ bias_parts, int n, int p, int q, int k,
                                  int c, int r, int s, int stride, int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), ones = memory + Stages::bytes;
    Stages ring(memory, ones + 1024);
    const int per_position = (c + PIECE - 1) / PIECE, all = r * s * per_position, tiles_n = (all + pieces - 1) / pieces;
    const int m0 = (int)(blockIdx.x / tiles_n) * BM, first = (int)(blockIdx.x % tiles_n) * pieces;
    const SplitK part((n * p * q + 63) / 64, blockIdx.y, SPLIT);
    if (threadIdx.x == 0) ring.init();
    if (threadIdx.x < 256)
        reinterpret_cast<unsigned*>(shared + Stages::bytes)[threadIdx.x] = ROUNDED ? 0x3c003c00 : 0x3f803f80;
    fence_async();
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x > 0) return;
        ring.fill(part.steps, [&](int step, unsigned a, unsigned full) {
            const int at = (part.first + step) * 64, image = at / (p * q), pixel = at % (p * q);
            const int x = pixel % q * stride - padding, y = pixel / q * stride - padding;
#pragma unroll
            for (int i = 0; i < BM / 64; ++i) load(a + i * of_dout, &map_dout, full, m0 + i * 64, at);
            for (int i = 0; i < pieces; ++i) {
                const int which = min(first + i, all - 1), position = which / per_position;
                load_windows(a + BM * 128 + i * piece, &map_image, full, which % per_position * PIECE, x, y, image,
                             position % s, position / s);
            }
        });
    } else {
        registers_up<consumer_registers>();
        const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
        const unsigned above = BM == 64 ? 0 : group * of_dout, pixel = BM == 64 ? group * 32 : 0;  // the first of each
        float total[BN / 2] = {}, total_ones[4] = {}, sum[BN / 2], sum_ones[4];
        const auto multiply = [&](auto with_ones) {
            for (int done = 0; done < part.steps; done += promoted) {
                ring.drain(min(promoted, part.steps - done), [&](int step, unsigned stage) {
                    const unsigned long long a = descriptor(stage + above + pixel * 128);
                    const unsigned long long b = descriptor(stage + BM * 128 + pixel * row, 8 * row, piece, row);
#pragma unroll
                    for (int slice = 0; slice < slices; ++slice) {
                        const int add = step > 0 || slice > 0;
                        wgmma<Format::PRODUCT, true, true>(sum, a + slice * 128, b + slice * row,
                                                           add);  // 16 pixels further
                        if constexpr (decltype(with_ones)::value)
                            wgmma<Format::PRODUCT, true>(sum_ones, a + slice * 128, descriptor(ones), add);
                    }
                });
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) total[i] += sum[i];
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if constexpr (decltype(with_ones)::value) total_ones[i] += sum_ones[i];
            }
        };
        if (BIAS && first == 0)
            multiply(Choice<true>());
        else
            multiply(Choice<false>());
        const int part_index = BM == 64 ? blockIdx.y * 2 + group : blockIdx.y;
        const int filter = m0 + (BM == 64 ? 0 : group * 64) + threadIdx.x / 32 % 4 * 16 + lane / 4;
        float* const to = parts + ((size_t)part_index * k + filter) * (r * s * c);
#pragma unroll
        for (int j = 0; j < BN / 8; ++j) {
            const int which = first + j * 8 / PIECE;
            const int channel = which % per_position * PIECE + j * 8 % PIECE + lane % 4 * 2;
            const int at = which / per_position * c + channel;
            if (which >= all || channel >= c) continue;
#if ROUNDED
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at_row = filter + i / 2 * 8;
                const int e = image_exponents[channel + i % 2] + (at_row < k ? dout_exponents[at_row] : 0);
                total[j * 4 + i] = scaled(total[j * 4 + i], e);
            }
#endif
            if (filter < k) store_two(to + at, total[j * 4], total[j * 4 + 1]);
            if (filter + 8 < k) store_two(to + (size_t)8 * r * s * c + at, total[j * 4 + 2], total[j * 4 + 3]);
        }
        if (BIAS && first == 0 && lane % 4 == 0)
            for (int i = 0; i < 4; i += 2) {
                if (filter + i * 4 >= k) continue;
#if ROUNDED
                total_ones[i] = scaled(total_ones[i], dout_exponents[filter + i * 4]);
#endif
                bias_parts[part_index * k + filter + i * 4] = total_ones[i];
            }
    }
}

// Add the blocks' results in the order of their index: of dweight [k][depth] and, in the last blocks, of dbias [k].
extern "C" __global__ void __launch_bounds__(128)
    conv2d_wgrad_add_parts(const float* __restrict__ parts, const float* __restrict__ bias_parts,
                           float* __restrict__ dweight,
#if BIAS
                           float* __restrict__ dbias,
#endif
                           int k, int depth) {
#if !BIAS
    float* dbias = nullptr;
#endif
    add_weight_parts<PARTS, BIAS>(parts, bias_parts, dweight, dbias, k, depth);
}

#if ROUNDED
// Find the largest magnitude of each channel of the image and, in the blocks of z = 1, of dout.
extern "C" __global__ void __launch_bounds__(256)
    conv2d_wgrad_find(const float* __restrict__ image, const float* __restrict__ dout, unsigned* __restrict__ largest,
                      int of_image, int c, int of_dout, int k) {
    if (blockIdx.z == 0)
        find_columns(image, largest, of_image, c);
    else
        find_columns(dout, largest + c, of_dout, k);
}
extern "C" __global__ void __launch_bounds__(256)
    conv2d_wgrad_round(const float* __restrict__ image, const float* __restrict__ dout,
                       const unsigned* __restrict__ largest, __half* __restrict__ image_halves,
                       __half* __restrict__ dout_halves, int* __restrict__ image_exponents,
                       int* __restrict__ dout_exponents, int of_image, int c, int of_dout, int k) {
    if (blockIdx.z == 0)
        split_columns<1>(image, largest, image_halves, image_exponents, of_image, c, c);
    else
        split_columns<1>(dout, largest + c, dout_halves, dout_exponents, of_dout, k, k);
}
#endif
