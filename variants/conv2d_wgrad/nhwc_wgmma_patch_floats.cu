// /// opbench
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "fused", "split_k",
//     "double_buffer", "tma", "tensor_core",
// ]
// tile      = { patch_height = "HEIGHT", patch_width = 8 }
// supports  = { layout = ["nhwc"], bias = ["no", "yes"] }
// requires  = [
//     "r == 3 and s == 3 and stride == 1", "c % 4 == 0 and k % 4 == 0", "padding <= 16",
//     "SPLIT * k * (9 * c + 1) <= 2 ** 28", "SPLIT * PIXEL_TILES < 2 ** 31", "n * h * w * max(c, k) < 2 ** 31",
// ]
// compute_capability = "9.0a"
// tune      = { WAVES = [1, 2, 4] }
// workspace = { parts = "SPLIT * k * 9 * c", bias_parts = "SPLIT * k" }
//
// [define]
// HEIGHT = "8"
// PIXEL_TILES = "n * cdiv(p, HEIGHT) * cdiv(q, 8)"
// SPLIT  = "max(1, min(cdiv(PIXEL_TILES, 6), WAVES * 132 // (cdiv(k, 64) * cdiv(c, 32))))"
// PLANES = "2 if PRODUCT == 'f16x3' else 1"
// STAGES = "5 - PLANES"
// BIAS   = "1 if bias == 'yes' else 0"
//
// [tensor_maps]
// map_dout  = { tensor = "dout", box = [64, 8, 8, 1], swizzle = "none" }
// map_image = { tensor = "image", box = [32, 10, 10, 1], swizzle = "none" }
//
// [[launch]]
// kernel = "conv2d_wgrad_nhwc_wgmma_patch_floats"
// grid   = ["cdiv(k, 64) * cdiv(c, 32)", "SPLIT"]
// block  = [512]
// shared = "4 * 29184 + STAGES * 15360 * PLANES + 256"
// args   = ["map_dout", "map_image", "parts", "bias_parts", "n", "p", "q", "k", "c", "padding"]
//
// [[launch]]
// kernel = "conv2d_wgrad_add_parts"
// grid   = ["cdiv(k * c * 9, 512) + BIAS * cdiv(k, 128)"]
// block  = [128]
// args   = ["parts", "bias_parts", "dweight", "dbias?", "k", "c * 9"]
//
// [variant.nhwc_wgmma_patch_planes]
// title     = "wgmma with float32 accuracy: each block splits its patches into two f16 parts, no separate kernels"
// builds_on = "nhwc_wgmma_split_planes"
// mechanism = ["operand_split"]
// product   = "f16x3"
//
// [variant.nhwc_wgmma_patch_halves]
// title     = "nhwc_wgmma_patch_f16 without separate kernels: each block rounds and scales its patches"
// builds_on = "nhwc_wgmma_patch_f16"
// product   = "f16"
// precision = "tf32"
// ///
//
// The patches of nhwc_wgmma_patch (8 x 8 pixels of dout and the 10 x 10 image pixels around them, for nine filter
// positions), but TMA loads them as floats, and one warpgroup of the block splits them. Separate passes that split move
// each tensor three times more, which for large images takes as long as the products. The largest magnitude of each
// patch defines its power of two, so no pass has to find it either. Each of three warpgroups computes one filter row
// for 32 channels: rows of 64 bytes, whose three positions are the 96 columns of one instruction. Products with low
// parts come first, into a sum that starts from zero for every 64 pixels and is then added in float: the tensor core,
// which truncates, adds only four terms of full size to it. The warpgroup that splits has dout as floats, so it also
// computes the gradient of the bias. Limit: shared memory, 107 of its 128 bytes per clock at 64 x 96; with one plane
// the splitting. Idea: matmul/wgmma_planes, and block floating point.
// floating point.

#include <opbench/gradients.cuh>
#include <opbench/split_ring.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

typedef FloatTile<64, 64> Gradients;  // pixels, filters
typedef FloatTile<100, 32> Patch;     // pixels, channels
constexpr int raw_bytes = Gradients::bytes + Patch::bytes, gradient_planes = PLANES * Gradients::plane_bytes;
constexpr int stage_bytes = gradient_planes + PLANES * Patch::plane_bytes, pixel = 64, row_of_pixels = 10 * pixel;
typedef SplitRing<4, raw_bytes, STAGES, stage_bytes, 2, 3, false> Stages;

// image [n][h][w][c], dout [n][p][q][k], parts [SPLIT][k][3][3][c], bias_parts [SPLIT][k]
extern "C" __global__ void __launch_bounds__(512, 1)
    conv2d_wgrad_nhwc_wgmma_patch_floats(const __grid_constant__ TensorMap map_dout,
                                         const __grid_constant__ TensorMap map_image, float* __restrict__ parts,
                                         float* __restrict__ bias_parts, int n, int p, int q, int k, int c,
                                         int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Stages ring(shared);
    const int tiles_c = (c + 31) / 32, tiles_x = (q + 7) / 8, tiles_y = (p + 7) / 8;
    const int m0 = (int)(blockIdx.x / tiles_c) * 64, c0 = (int)(blockIdx.x % tiles_c) * 32;
    const SplitK part(n * tiles_y * tiles_x, blockIdx.y, SPLIT);
    if (threadIdx.x == 0) ring.init();
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<104>();
        float4 bias = broadcast_float4(0.0f);  // sums of four filters
        int x = part.first % tiles_x * 8, y = part.first / tiles_x % tiles_y * 8;
        int image = part.first / tiles_x / tiles_y;
        ring.produce(
            part.steps,
            [&](unsigned to, unsigned full) {
                load(to, &map_dout, full, m0, x, y, image);
                load(to + Gradients::bytes, &map_image, full, c0, x - padding, y - padding, image);
                if ((x += 8) < q) return;
                x = 0;
                if ((y += 8) >= p) y = 0, ++image;
            },
            [](const unsigned char* floats, unsigned (&largest_magnitude)[2]) {
                largest_magnitude[0] = Gradients::largest_magnitude(floats),
                largest_magnitude[1] = Patch::largest_magnitude(floats + Gradients::bytes);
            },
            [&](const unsigned char* floats, unsigned char* stage, unsigned, const int (&e)[2]) {
                Gradients::write<PLANES>(floats, stage, e[0], [&](const float4& of) {
                    if (BIAS) bias.x += of.x, bias.y += of.y, bias.z += of.z, bias.w += of.w;
                });
                Patch::write<PLANES>(floats + Gradients::bytes, stage + gradient_planes, e[1], [](const float4&) {});
            });
#if BIAS
        if (c0 > 0) return;
        // in memory whose floats have already been read
        float4* const all = reinterpret_cast<float4*>(shared + STAGES * stage_bytes);
        all[threadIdx.x] = bias;
        named_barrier_sync(1, 128);
        if (threadIdx.x >= 64 || m0 + (int)threadIdx.x >= k) return;
        float sum = 0.0f;
        for (int i = 0; i < 8; ++i) sum += reinterpret_cast<const float*>(all)[i * 64 + threadIdx.x];
        bias_parts[blockIdx.y * k + m0 + threadIdx.x] = sum;
#endif
    } else {
        registers_up<136>();
        const int filter_row = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
        float total[48] = {}, sum[48];
        ring.drain(
            part.steps,
            [&](unsigned stage) {
                constexpr unsigned long long low_a = Gradients::plane_bytes / 16, low_b = Patch::plane_bytes / 16;
                const unsigned long long a = descriptor(stage);
                const unsigned long long b =
                    descriptor(stage + gradient_planes + filter_row * row_of_pixels, row_of_pixels, pixel, 64);
                constexpr int step_a = 2048 / 16, step_b = 2 * row_of_pixels / 16;  // two rows of 8 pixels further
#pragma unroll
                for (int i = 0; i < 4 && PLANES == 2; ++i) {
                    wgmma<Format::f16, true, true>(sum, a + low_a + i * step_a, b + i * step_b, i > 0);
                    wgmma<Format::f16, true, true>(sum, a + i * step_a, b + low_b + i * step_b, 1);
                }
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    wgmma<Format::f16, true, true>(sum, a + i * step_a, b + i * step_b, PLANES == 2 || i > 0);
            },
            [&](const float (&off)[2]) {
#pragma unroll
                for (int i = 0; i < 48; ++i) total[i] += sum[i] * off[0] * off[1];
            });
        const int row = m0 + threadIdx.x / 32 % 4 * 16 + lane / 4;
        float* const to = parts + ((size_t)blockIdx.y * k + row) * (9 * c) + filter_row * 3 * c;
#pragma unroll
        for (int j = 0; j < 12; ++j) {
            const int channel = c0 + j % 4 * 8 + lane % 4 * 2;
            if (channel >= c) continue;
            float* const at = to + j / 4 * c + channel;
            if (row < k) store_two(at, total[j * 4], total[j * 4 + 1]);
            if (row + 8 < k) store_two(at + (size_t)8 * 9 * c, total[j * 4 + 2], total[j * 4 + 3]);
        }
    }
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
    add_weight_parts<SPLIT, BIAS>(parts, bias_parts, dweight, dbias, k, depth);
}
