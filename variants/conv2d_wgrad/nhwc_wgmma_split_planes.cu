// /// opbench
// title     = "wgmma with float32 accuracy: dout and image split into two f16 parts, three products"
// builds_on = "nhwc_wgmma_split_f16"
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "split_k", "double_buffer",
//     "tma", "tensor_core", "operand_split", "warp_specialised", "converted_ahead",
// ]
// product   = "f16x3"
// supports  = { layout = ["nhwc"], bias = ["no", "yes"] }
// requires  = [
//     "c % 8 == 0 and k % 8 == 0",
//     "r <= 16 and s <= 16 and padding <= 16 and stride <= 8",
//     "n * p * q + 64 < 2 ** 31",
//     "PARTS * k * (c * r * s + 1) <= 2 ** 28",
//     "SPLIT * cdiv(n * p * q, 64) < 2 ** 31",
//     "max(h * w * c, p * q * k) < 2 ** 31",
// ]
// compute_capability = "9.0a"
// tune      = { BM = [128, 64], SPLIT = [11, 44, 22, 4, 1] }
//
// [define]
// PIECE  = "32 if c <= 32 else 64"
// STAGES = "3 if BM == 128 else 4"
// PARTS  = "SPLIT * 128 // BM"
// BIAS   = "1 if bias == 'yes' else 0"
//
// [workspace]
// parts        = "PARTS * k * c * r * s"
// bias_parts   = "PARTS * k"
// image_planes = "n * h * w * c"
// dout_planes  = "n * p * q * k"
// largest      = "4"
// exponents    = "4"
//
// [tensor_maps]
// map_dout = { tensor = "dout_planes", type = "f16", dims = ["k", "n * p * q", 2], box = [64, 64, 2] }
//
// [tensor_maps.map_image]
// tensor = "image_planes"
// type   = "f16"
// dims   = ["c", "w", "h", "2 * n"]
// element_strides = [1, "stride", "stride", 1]
// swizzle = "'64B' if PIECE == 32 else '128B'"
//
// [tensor_maps.map_image.im2col]
// lower    = ["-padding", "-padding"]
// upper    = ["padding - s + 1", "padding - r + 1"]
// channels = "PIECE"
// pixels   = 64
//
// [[launch]]
// zero = "largest"
//
// [[launch]]
// kernel = "conv2d_wgrad_find"
// grid   = ["min(528, cdiv(n * p * q * max(c, k), 4096))", 1, 2]
// block  = [256]
// args   = ["image", "dout", "largest", "n", "h * w * c", "p * q * k"]
//
// [[launch]]
// kernel = "conv2d_wgrad_split"
// grid   = ["min(528, cdiv(n * p * q * max(c, k), 4096))", 1, 2]
// block  = [256]
// args   = ["image", "dout", "largest", "image_planes", "dout_planes", "exponents", "n", "h * w * c", "p * q * k"]
//
// [[launch]]
// kernel = "conv2d_wgrad_nhwc_wgmma_planes"
// grid   = ["cdiv(k, BM) * cdiv(r * s * cdiv(c, PIECE), 128 // PIECE)", "SPLIT"]
// block  = [384]
// shared = "STAGES * ((BM + 128) * 256 + 16) + 1024"
// args   = [
//     "map_dout", "map_image", "exponents", "parts", "bias_parts", "n", "p", "q", "k", "c", "r", "s", "stride",
//     "padding",
// ]
//
// [[launch]]
// kernel = "conv2d_wgrad_add_parts"
// grid   = ["cdiv(k * c * r * s, 512) + BIAS * cdiv(k, 128)"]
// block  = [128]
// args   = ["parts", "bias_parts", "dweight", "dbias?", "k", "c * r * s"]
// ///
//
// nhwc_wgmma_split with image and dout in two f16 planes each, as in conv2d/nhwc_wgmma_patch_planes: a power of two per
// tensor, and three products; the products of high parts are added in float after every 64 pixels, while those with low
// parts run. Limit: 192 sums per thread, so tiles are 128 x 128; and the passes that split, which the forward pass and
// dgrad make as well.

#include <opbench/gradients.cuh>
#include <opbench/hi_lo_split.cuh>
#include <opbench/ring.cuh>
using namespace opbench;

typedef Ring<STAGES, (BM + 128) * 256> Stages;
// `pieces` parts of a stage, each 64 pixels with PIECE channels
constexpr int pieces = 128 / PIECE, row = PIECE * 2, piece = 64 * row;
// slices: of a stage's four slices of 16 pixels, those of a warpgroup
constexpr int of_dout = 64 * 128, slices = BM / 32;

// image_planes [2][n][h][w][c], dout_planes [2][n][p][q][k], parts [PARTS][k][r s c], bias_parts [PARTS][k]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv2d_wgrad_nhwc_wgmma_planes(const __grid_constant__ TensorMap map_dout,
                                   const __grid_constant__ TensorMap map_image, const int* __restrict__ exponents,
                                   float* __restrict__ parts, float* __restrict__ bias_parts, int n, int p, int q,
                                   int k, int c, int r, int s, int stride, int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), ones = memory + Stages::bytes;
    Stages ring(memory, ones + 1024);
    const int per_position = (c + PIECE - 1) / PIECE, all = r * s * per_position, tiles_n = (all + pieces - 1) / pieces;
    const int m0 = (int)(blockIdx.x / tiles_n) * BM, first = (int)(blockIdx.x % tiles_n) * pieces;
    const SplitK part((n * p * q + 63) / 64, blockIdx.y, SPLIT);
    if (threadIdx.x == 0) ring.init();
    // ones in f16
    if (threadIdx.x < 256) reinterpret_cast<unsigned*>(shared + Stages::bytes)[threadIdx.x] = 0x3c003c00;
    fence_async();
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x > 0) return;
        ring.fill(part.steps, [&](int step, unsigned a, unsigned full) {
            const int at = (part.first + step) * 64, image = at / (p * q), pixel = at % (p * q);
            const int x = pixel % q * stride - padding, y = pixel / q * stride - padding;
#pragma unroll
            for (int i = 0; i < BM / 64; ++i) load(a + i * 2 * of_dout, &map_dout, full, m0 + i * 64, at, 0);
            for (int i = 0; i < 2 * pieces; ++i) {  // all parts of one plane, then of the other
                const int which = min(first + i % pieces, all - 1), position = which / per_position;
                load_windows(a + BM * 256 + i * piece, &map_image, full, which % per_position * PIECE, x, y,
                             image + i / pieces * n, position % s, position / s);
            }
        });
    } else {
        registers_up<consumer_registers>();
        const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
        const unsigned above = BM == 64 ? 0 : group * 2 * of_dout,
                       // BM == 64: both warpgroups share the rows and divide the pixels
            pixel = BM == 64 ? group * 32 : 0;
        float total[64] = {}, big[64], small[64], total_ones[4] = {}, big_ones[4], small_ones[4];
        const auto multiply = [&](auto with_ones) {
            constexpr bool ones_too = decltype(with_ones)::value;
            ring.drain(
                part.steps,
                [&](int step, unsigned stage) {
                    const unsigned long long a = descriptor(stage + above + pixel * 128), low = of_dout / 16;
                    const unsigned long long b = descriptor(stage + BM * 256 + pixel * row, 8 * row, piece, row);
#pragma unroll
                    for (int i = 0; i < slices; ++i) {
                        wgmma<Format::f16, true, true>(big, a + i * 128, b + i * row, i > 0);  // 16 pixels per step
                        if constexpr (ones_too)
                            wgmma<Format::f16, true>(big_ones, a + i * 128, descriptor(ones), i > 0);
                    }
                    wgmma_commit();
#pragma unroll
                    for (int i = 0; i < slices; ++i) {
                        const int add = step > 0 || i > 0;
                        wgmma<Format::f16, true, true>(small, a + low + i * 128, b + i * row, add);
                        wgmma<Format::f16, true, true>(small, a + i * 128, b + 2 * low + i * row, 1);
                        if constexpr (ones_too)
                            wgmma<Format::f16, true>(small_ones, a + low + i * 128, descriptor(ones), add);
                    }
                },
                [&] {
#pragma unroll
                    for (int i = 0; i < 64; ++i) total[i] += big[i];
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        if constexpr (ones_too) total_ones[i] += big_ones[i];
                });
        };
        if (BIAS && first == 0)
            multiply(Choice<true>());
        else
            multiply(Choice<false>());
        const int part_index = BM == 64 ? blockIdx.y * 2 + group : blockIdx.y, e = exponents[0] + exponents[1];
        const int filter = m0 + (BM == 64 ? 0 : group * 64) + threadIdx.x / 32 % 4 * 16 + lane / 4;
        float* const to = parts + ((size_t)part_index * k + filter) * (r * s * c);
#pragma unroll
        for (int i = 0; i < 64; ++i) total[i] = part.steps > 0 ? scaled(total[i] + small[i], e) : 0.0f;
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            const int which = first + j * 8 / PIECE;
            const int channel = which % per_position * PIECE + j * 8 % PIECE + lane % 4 * 2;
            const int at = which / per_position * c + channel;
            if (which >= all || channel >= c) continue;
            if (filter < k) store_two(to + at, total[j * 4], total[j * 4 + 1]);
            if (filter + 8 < k) store_two(to + (size_t)8 * r * s * c + at, total[j * 4 + 2], total[j * 4 + 3]);
        }
        if (BIAS && first == 0 && lane % 4 == 0)
            for (int i = 0; i < 4; i += 2)
                if (filter + i * 4 < k)
                    bias_parts[part_index * k + filter + i * 4] =
                        part.steps > 0 ? scaled(total_ones[i] + small_ones[i], exponents[1]) : 0.0f;
    }
}

// Find the largest magnitude of the image; the blocks of z = 1 find that of dout.
extern "C" __global__ void __launch_bounds__(256)
    conv2d_wgrad_find(const float* __restrict__ image, const float* __restrict__ dout, unsigned* __restrict__ largest,
                      int n, int of_image, int of_dout) {
    const bool second = blockIdx.z > 0;
    find_largest(second ? dout : image, largest + second, (long long)n * (second ? of_dout : of_image));
}
extern "C" __global__ void __launch_bounds__(256)
    conv2d_wgrad_split(const float* __restrict__ image, const float* __restrict__ dout,
                       const unsigned* __restrict__ largest, __half* __restrict__ image_planes,
                       __half* __restrict__ dout_planes, int* __restrict__ exponents, int n, int of_image,
                       int of_dout) {
    const bool second = blockIdx.z > 0;
    split_all(second ? dout : image, largest + second, second ? dout_planes : image_planes, exponents + second,
              (long long)n * (second ? of_dout : of_image));
}

// Add the blocks' sums in index order: of dweight [k][depth] and, in the last blocks, of dbias [k].
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
