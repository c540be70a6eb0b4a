// /// opbench
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "split_k", "double_buffer",
//     "tma", "tensor_core",
// ]
// tile      = { patch_height = "HEIGHT", patch_width = 8 }
// supports  = { layout = ["nhwc"], bias = ["no", "yes"] }
// requires  = [
//     "r == 3 and s == 3 and stride == 1", "c % 8 == 0 and k % 8 == 0", "padding <= 16",
//     "SPLIT * k * (9 * c + 1) <= 2 ** 28", "SPLIT * PIXEL_TILES < 2 ** 31", "n * h * w * max(c, k) < 2 ** 31",
// ]
// compute_capability = "9.0a"
// tune      = { HEIGHT = [16, 12], WAVES = [1, 2, 4] }
// workspace = { parts = "SPLIT * k * 9 * c", bias_parts = "SPLIT * k" }
//
// [define]
// PIXEL_TILES = "n * cdiv(p, HEIGHT) * cdiv(q, 8)"
// SPLIT  = "max(1, min(PIXEL_TILES, WAVES * 132 // (cdiv(k, 64) * cdiv(c, 64))))"
// COPIED = "HEIGHT * 1024 + (HEIGHT + 2) * 1280"
// STAGE  = "HEIGHT * 1024 + cdiv((HEIGHT + 2) * 1280, 1024) * 1024"
// STAGES = "221184 // STAGE"
// BIAS   = "1 if bias == 'yes' else 0"
//
// [variant.nhwc_wgmma_patch]
// title     = "bf16 wgmma: one copy of an image patch for all nine filter positions, a warpgroup per filter row"
// builds_on = "nhwc_wgmma_split_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// define    = { ROUNDED = "0" }
//
// [variant.nhwc_wgmma_patch.tensor_maps]
// map_dout  = { tensor = "dout", box = [64, 8, "HEIGHT", 1] }
// map_image = { tensor = "image", box = [64, 10, "HEIGHT + 2", 1] }
//
// [[variant.nhwc_wgmma_patch.launch]]
// kernel = "conv2d_wgrad_nhwc_wgmma_patch"
// grid   = ["cdiv(k, 64) * cdiv(c, 64)", "SPLIT"]
// block  = [512]
// shared = "STAGES * (STAGE + 16) + 1024"
// args   = ["map_dout", "map_image", "parts", "bias_parts", "n", "p", "q", "k", "c", "padding"]
//
// [[variant.nhwc_wgmma_patch.launch]]
// kernel = "conv2d_wgrad_add_parts"
// grid   = ["cdiv(k * c * 9, 512) + BIAS * cdiv(k, 128)"]
// block  = [128]
// args   = ["parts", "bias_parts", "dweight", "dbias?", "k", "c * 9"]
//
// [variant.nhwc_wgmma_patch_f16]
// title     = "nhwc_wgmma_patch with TF32 accuracy by f16: separate kernels round and scale each channel"
// mechanism = ["converted_ahead"]
// builds_on = "nhwc_wgmma_split_f16"
// product   = "f16"
// precision = "tf32"
// define    = { ROUNDED = "1" }
//
// [variant.nhwc_wgmma_patch_f16.workspace]
// image_halves    = "n * h * w * c // 2"
// dout_halves     = "n * p * q * k // 2"
// largest         = "c + k"
// image_exponents = "c"
// dout_exponents  = "k"
//
// [variant.nhwc_wgmma_patch_f16.tensor_maps]
// map_dout  = { tensor = "dout_halves", type = "f16", dims = ["k", "q", "p", "n"], box = [64, 8, "HEIGHT", 1] }
// map_image = { tensor = "image_halves", type = "f16", dims = ["c", "w", "h", "n"], box = [64, 10, "HEIGHT + 2", 1] }
//
// [[variant.nhwc_wgmma_patch_f16.launch]]
// zero = "largest"
//
// [[variant.nhwc_wgmma_patch_f16.launch]]
// kernel = "conv2d_wgrad_find"
// grid   = ["cdiv(max(c, k), 1024)", "min(cdiv(n * max(h * w * c, p * q * k), 8192), 264)", 2]
// block  = [256]
// args   = ["image", "dout", "largest", "n * h * w", "c", "n * p * q", "k"]
//
// [[variant.nhwc_wgmma_patch_f16.launch]]
// kernel = "conv2d_wgrad_round"
// grid   = ["cdiv(max(c, k), 1024)", "min(cdiv(n * max(h * w * c, p * q * k), 8192), 528)", 2]
// block  = [256]
// args   = [
//     "image", "dout", "largest", "image_halves", "dout_halves", "image_exponents", "dout_exponents", "n * h * w", "c",
//     "n * p * q", "k",
// ]
//
// [[variant.nhwc_wgmma_patch_f16.launch]]
// kernel = "conv2d_wgrad_nhwc_wgmma_patch"
// grid   = ["cdiv(k, 64) * cdiv(c, 64)", "SPLIT"]
// block  = [512]
// shared = "STAGES * (STAGE + 16) + 1024"
// args   = [
//     "map_dout", "map_image", "dout_exponents", "image_exponents", "parts", "bias_parts", "n", "p", "q", "k", "c",
//     "padding",
// ]
//
// [[variant.nhwc_wgmma_patch_f16.launch]]
// kernel = "conv2d_wgrad_add_parts"
// grid   = ["cdiv(k * c * 9, 512) + BIAS * cdiv(k, 128)"]
// block  = [128]
// args   = ["parts", "bias_parts", "dweight", "dbias?", "k", "c * 9"]
// ///
//
// In im2col order every filter position fetches the image again, and L2 limits the previous variant. Here HEIGHT x 8
// pixels of dout and the patch of the image around them are loaded once, 64 channels of each, for all nine positions.
// The operand of filter row i starts i rows of the patch later, which works because the swizzle follows the address.
// wgmma finds every further 64 columns `leading` bytes after the previous ones; if this is one pixel, its 192 columns
// are the three positions of the row. So three warpgroups have a filter row each, with 64 x 192 sums that stay in
// registers, and 39 KB feed 9.4 million products.
//
// The tensor core itself adds the sums over a block's part of the pixels. It truncates when it adds, by 1e-4 of a sum
// at most for such a part in UNet, far below the rounding of bf16 operands. Columns of ones yield the gradient of the
// bias. In f16 a first pass scales each channel so that its largest magnitude is 2^15, as in nhwc_wgmma_split_f16.
// Limit: the tensor cores and the shared memory that feeds them; images that are no multiple of HEIGHT x 8; with f16
// the first pass over large images. Idea: the forward variant nhwc_wgmma_patch, with pixels as the depth.

#include <opbench/gradients.cuh>
#include <opbench/hi_lo_split.cuh>
#include <opbench/ring.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

constexpr int filter_rows = 3, width = 10;  // pixels of the patch
typedef Ring<STAGES, STAGE, 1, filter_rows, COPIED> Stages;

// image [n][h][w][c], dout [n][p][q][k], parts [SPLIT][k][3][3][c], bias_parts [SPLIT][k]
extern "C" __global__ void __launch_bounds__(512, 1)
    conv2d_wgrad_nhwc_wgmma_patch(const __grid_constant__ TensorMap map_dout,
                                  const __grid_constant__ TensorMap map_image,
#if ROUNDED
                                  const int* __restrict__ dout_exponents, const int* __restrict__ image_exponents,
#endif
                                  float* __restrict__ parts, float* __restrict__ bias_parts, int n, int p, int q, int k,
                                  int c, int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), ones = memory + Stages::bytes;
    Stages ring(memory, ones + 1024);
    const int tiles_c = (c + 63) / 64, tiles_x = (q + 7) / 8, tiles_y = (p + HEIGHT - 1) / HEIGHT;
    const int m0 = (int)(blockIdx.x / tiles_c) * 64, c0 = (int)(blockIdx.x % tiles_c) * 64;
    const SplitK part(n * tiles_y * tiles_x, blockIdx.y, SPLIT);
    if (threadIdx.x == 0) ring.init();
    if (threadIdx.x < 256)
        reinterpret_cast<unsigned*>(shared + Stages::bytes)[threadIdx.x] = ROUNDED ? 0x3c003c00 : 0x3f803f80;
    fence_async();
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<24>();
        if (threadIdx.x > 0) return;
        ring.fill(part.steps, [&](int step, unsigned dout, unsigned full) {
            const int tile = part.first + step, x = tile % tiles_x * 8, y = tile / tiles_x % tiles_y * HEIGHT;
            const int image = tile / tiles_x / tiles_y;
            load(dout, &map_dout, full, m0, x, y, image);
            load(dout + HEIGHT * 1024, &map_image, full, c0, x - padding, y - padding, image);
        });
    } else {
        registers_up<160>();
        const int filter_row = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
        float sum[96], sum_ones[4] = {};
        const auto multiply = [&](auto with_ones) {
            ring.drain(part.steps, [&](int step, unsigned dout) {
                const unsigned patch = dout + HEIGHT * 1024 + filter_row * width * 128;
#pragma unroll
                for (int pair = 0; pair < HEIGHT / 2; ++pair) {  // of rows of 8 pixels, the depth of an instruction
                    const int add = step > 0 || pair > 0;
                    const unsigned long long a = descriptor(dout + pair * 2048);
                    wgmma<Format::PRODUCT, true, true>(
                        sum, a, descriptor(patch + pair * 2 * width * 128, width * 128, 128), add);
                    if constexpr (decltype(with_ones)::value)
                        wgmma<Format::PRODUCT, true>(sum_ones, a, descriptor(ones), add);
                }
            });
        };
        if (BIAS && c0 == 0)
            multiply(Choice<true>());
        else
            multiply(Choice<false>());
        const int row = m0 + threadIdx.x / 32 % 4 * 16 + lane / 4;
        float* const to = parts + ((size_t)blockIdx.y * k + row) * (9 * c) + filter_row * 3 * c;
#pragma unroll
        for (int j = 0; j < 24; ++j) {
            const int channel = c0 + j % 8 * 8 + lane % 4 * 2;
            if (channel >= c) continue;
#if ROUNDED
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at_row = row + i / 2 * 8;
                const int e = image_exponents[channel + i % 2] + (at_row < k ? dout_exponents[at_row] : 0);
                sum[j * 4 + i] = scaled(sum[j * 4 + i], e);
            }
#endif
            float* const at = to + j / 8 * c + channel;
            if (row < k) store_two(at, sum[j * 4], sum[j * 4 + 1]);
            if (row + 8 < k) store_two(at + (size_t)8 * 9 * c, sum[j * 4 + 2], sum[j * 4 + 3]);
        }
        if (BIAS && filter_row == 0 && c0 == 0 && lane % 4 == 0)
            for (int i = 0; i < 4; i += 2) {
                if (row + i * 4 >= k) continue;
#if ROUNDED
                sum_ones[i] = scaled(sum_ones[i], dout_exponents[row + i * 4]);
#endif
                bias_parts[blockIdx.y * k + row + i * 4] = sum_ones[i];
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
    add_weight_parts<SPLIT, BIAS>(parts, bias_parts, dweight, dbias, k, depth);
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
