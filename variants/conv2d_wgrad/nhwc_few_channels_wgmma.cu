// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "compile_time_sizes", "split_k", "double_buffer", "tma",
//     "tensor_core", "few_channels",
// ]
// supports  = { layout = ["nhwc"], bias = ["no", "yes"] }
// requires  = [
//     "c <= 4",
//     "c * r * s + BIAS <= 128 and r <= 32 and s <= 32",
//     "k <= 128 and k % (8 if PRODUCT == 'bf16' else 4) == 0",
//     "n * max(p * q * k, h * w * c) < 2 ** 31",
// ]
// compute_capability = "9.0a"
// workspace = { parts = "SPLIT * k * c * r * s", bias_parts = "SPLIT * k" }
//
// [define]
// C       = "c"
// R       = "r"
// S       = "s"
// STRIDE  = "stride"
// OUTPUTS = "k"
// BIAS    = "1 if bias == 'yes' else 0"
// STEPS   = "cdiv(c * r * s + BIAS, 64)"
// PLANES  = "2 if PRODUCT == 'f16x3' else 1"
// ROUNDED = "PRODUCT != 'bf16'"
// SPLIT   = "min(132, cdiv(n * p * q, 256))"
//
// [tensor_maps]
// map_dout = { tensor = "dout", dims = ["k", "n * p * q"], box = ["k", 64], swizzle = "none" }
//
// [[launch]]
// kernel = "conv2d_wgrad_nhwc_few_channels_wgmma"
// grid   = ["SPLIT"]
// block  = [512]
// shared = "2 * PLANES * (2 + STEPS) * 8192 + 3 * 64 * k * (4 if ROUNDED else 2) + 256"
// args   = ["image", "map_dout", "parts", "bias_parts", "n", "h", "w", "p", "q", "padding"]
//
// [[launch]]
// kernel = "conv2d_wgrad_add_parts"
// grid   = ["cdiv(k * c * r * s, 128 * (4 if c * r * s % 4 == 0 else 1)) + BIAS * cdiv(k, 128)"]
// block  = [128]
// args   = ["parts", "bias_parts", "dweight", "dbias?", "k", "c * r * s"]
//
// [variant.nhwc_few_channels_wgmma_bf16]
// title     = "few input channels, bf16 wgmma: one warpgroup gathers windows, one copies dout, two multiply"
// builds_on = "nhwc_few_channels_mma_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
//
// [variant.nhwc_few_channels_wgmma_f16]
// title     = "few input channels, TF32 accuracy by f16 wgmma: 64 pixels are scaled by one power of two"
// builds_on = "nhwc_few_channels_mma_f32"
// product   = "f16"
// precision = "tf32"
//
// [variant.nhwc_few_channels_wgmma_planes]
// title     = "few input channels, wgmma with float32 accuracy: operands split into two f16 parts, three products"
// builds_on = "nhwc_few_channels_wgmma_f16"
// mechanism = ["operand_split"]
// product   = "f16x3"
// ///
//
// As conv2d/nhwc_few_channels_wgmma, but pixels are the depth of the product: each stage has 64. One warpgroup gathers
// the windows of these pixels; a thread copies 64 elements of one window. A second warpgroup prepares dout (in f32 it
// splits dout into high and low parts); dout is contiguous, so TMA loads it, three stages ahead. Both warpgroups write
// rows as they read them, and wgmma transposes both operands. In each stage, every 64 elements of the windows, and
// every 64 filters of dout, are scaled by a power of two of their own. So sums start from zero in each stage, and are
// then scaled back and added in float. A column of ones after a window's last element yields the gradient of the bias.
// The blocks divide the pixels, and a second kernel adds their results in order. Limit: reading dout; gathering.

#include <opbench/gathered.cuh>
#include <opbench/gradients.cuh>
#include <opbench/ring.cuh>
using namespace opbench;

constexpr int depth = R * S * C, stages = 2, raws = 3;
constexpr int piece = 64 * 128, part_bytes = PLANES * piece;  // bytes of 64 pixels with 64 elements
constexpr int stage_bytes = (2 + STEPS) * part_bytes;
constexpr int quads = 64 * OUTPUTS / 4, each = (quads + 127) / 128;  // fours of dout, of a stage and of a thread
#if ROUNDED
constexpr Format operand = Format::f16;
typedef float T;
typedef float4 Four;
#else
constexpr Format operand = Format::bf16;
typedef unsigned short T;
typedef uint2 Four;
#endif

constexpr int raw_bytes = 64 * OUTPUTS * sizeof(T), control = stages * stage_bytes + raws * raw_bytes;

// Shared memory: the stages, each [halves of dout, then halves of the windows][plane][64 pixels][64]; dout as TMA loads
// it; the barriers; the powers of two.
struct Stages {
    unsigned char* shared;
    __device__ __forceinline__ unsigned full(int stage) const { return shared_address(shared) + control + 8 * stage; }
    __device__ __forceinline__ unsigned empty(int stage) const { return full(stages + stage); }
    __device__ __forceinline__ unsigned raw_full(int raw) const { return full(2 * stages + raw); }
    __device__ __forceinline__ float* powers(int stage) const {
        return reinterpret_cast<float*>(shared + control + 64) + stage * 4;
    }
    // Replace both magnitudes by their maxima over the warpgroup.
    __device__ __forceinline__ void reduce_magnitudes(unsigned (&magnitude)[2]) const {
        const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
        unsigned* const magnitudes = reinterpret_cast<unsigned*>(shared + control + 128) + group * 8;
        for (int i = 0; i < 2; ++i) {
            magnitude[i] = largest_of_warp(magnitude[i]);
            if (threadIdx.x % 32 == 0) magnitudes[i * 4 + warp] = magnitude[i];
        }
        named_barrier_sync(1 + group, 128);
        for (int i = 0; i < 2; ++i)
            for (int other = 0; other < 4; ++other) magnitude[i] = max(magnitude[i], magnitudes[i * 4 + other]);
        named_barrier_sync(1 + group, 128);
    }
    __device__ __forceinline__ void signal_full(int stage) const {
        fence_async();
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(full(stage));
    }
};

__device__ __forceinline__ T one() { return ROUNDED ? T(1) : T(0x3f80); }

// image [n][h][w][c], dout [n][p][q][k], parts [SPLIT][k][r][s][c], bias_parts [SPLIT][k]
extern "C" __global__ void __launch_bounds__(512, 1)
    conv2d_wgrad_nhwc_few_channels_wgmma(const T* __restrict__ image, const __grid_constant__ TensorMap map_dout,
                                         float* __restrict__ parts, float* __restrict__ bias_parts, int n, int h, int w,
                                         int p, int q, int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Stages ring{shared};
    const int pixels = n * p * q, group = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
    const SplitK tiles((pixels + 63) / 64, blockIdx.x, SPLIT);
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; ++i) barrier_init(ring.full(i), 8), barrier_init(ring.empty(i), 8);  // warps
        for (int i = 0; i < raws; ++i) barrier_init(ring.raw_full(i), 1);
        barrier_init_fence();
    }
    for (int i = threadIdx.x; i < stages * stage_bytes / 16; i += 512)  // elements after the last filter stay zero
        reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
    fence_async();
    __syncthreads();

    if (group == 0) {
        registers_down<96>();
        const int line = thread % 64, half = thread / 64;  // of a window
        for (int tile = 0; tile < tiles.steps; ++tile) {
            const int pixel = (tiles.first + tile) * 64 + line, stage = tile % stages;
            const int x = pixel % q * STRIDE - padding, y = pixel / q % p * STRIDE - padding;
            const T* const from = image + (((long long)(pixel / (p * q)) * h + y) * w + x) * C;
            T v[64];
            const auto gather = [&](auto second) {
                constexpr int first = decltype(second)::value ? 64 : 0;
                gather_window<C, R, S>(v, first, from, y, x, h, w, pixel < pixels);
                if (BIAS && depth / 64 == first / 64) v[depth % 64] = one();
            };
            if (half > 0)
                gather(Choice<true>());
            else
                gather(Choice<false>());
            int e = 0;
            if (ROUNDED) {
                unsigned magnitude[2] = {half == 0 ? largest_of(v) : 0, half > 0 ? largest_of(v) : 0};
                ring.reduce_magnitudes(magnitude);
                e = exponent_for(half == 0 ? magnitude[0] : magnitude[1]);
            }
            wait_for(ring.empty(stage), tile / stages % 2 ^ 1);
            if (half < STEPS)
                write_row<PLANES>(v, power_of_two(e), shared + stage * stage_bytes + (2 + half) * part_bytes, line,
                                  piece);
            if (line == 0) ring.powers(stage)[2 + half] = power_of_two(-e);
            ring.signal_full(stage);
        }
    } else if (group == 1) {
        registers_down<96>();
        const auto fetch = [&](int tile) {
            if (thread > 0 || tile >= tiles.steps) return;
            const int raw = tile % raws;
            arrive_expect(ring.raw_full(raw), raw_bytes);
            load(shared_address(shared) + stages * stage_bytes + raw * raw_bytes, &map_dout, ring.raw_full(raw), 0,
                 (tiles.first + tile) * 64);
        };
        for (int tile = 0; tile < raws; ++tile) fetch(tile);
        for (int tile = 0; tile < tiles.steps; ++tile) {
            const int stage = tile % stages, raw = tile % raws;
            const Four* const from = reinterpret_cast<const Four*>(shared + stages * stage_bytes + raw * raw_bytes);
            wait_for(ring.raw_full(raw), tile / raws % 2);
            Four v[each];
            unsigned magnitude[2] = {};
#pragma unroll
            for (int i = 0; i < each; ++i) {
                const int at = thread + i * 128;
                v[i] = quads % 128 == 0 || at < quads ? from[at] : Four{};
#if ROUNDED
                const int half = at % (OUTPUTS / 4) / 16;
                const unsigned most = largest(v[i]);
                magnitude[0] = max(magnitude[0], half == 0 ? most : 0),
                magnitude[1] = max(magnitude[1], half > 0 ? most : 0);
#endif
            }
            ring.reduce_magnitudes(magnitude);  // also: all threads have read dout, so its memory is free
            fetch(tile + raws);
            const int e[2] = {ROUNDED ? exponent_for(magnitude[0]) : 0, ROUNDED ? exponent_for(magnitude[1]) : 0};
            wait_for(ring.empty(stage), tile / stages % 2 ^ 1);
#pragma unroll
            for (int i = 0; i < each; ++i) {
                const int at = thread + i * 128, filter = at % (OUTPUTS / 4) * 4, half = filter / 64;
                if (quads % 128 != 0 && at >= quads) break;
                unsigned char* const to = shared + stage * stage_bytes + half * part_bytes +
                                          swizzled<128>(at / (OUTPUTS / 4) * 128 + filter % 64 * 2);
#if ROUNDED
                split_four<PLANES>(v[i], broadcast_float4(power_of_two(half > 0 ? e[1] : e[0])),
                                   reinterpret_cast<__half*>(to), reinterpret_cast<__half*>(to + piece));
#else
                *reinterpret_cast<uint2*>(to) = v[i];
#endif
            }
            if (thread == 0) ring.powers(stage)[0] = power_of_two(-e[0]), ring.powers(stage)[1] = power_of_two(-e[1]);
            ring.signal_full(stage);
        }
    } else {
        registers_up<160>();
        const int half = group - 2;  // of the filters
        float total[STEPS * 32] = {}, sum[STEPS * 32];
        for (int tile = 0; tile < tiles.steps; ++tile) {
            const int stage = tile % stages;
            wait_for(ring.full(stage), tile / stages % 2);
            const float* const powers = ring.powers(stage);
            const float off = powers[half], windows[2] = {powers[2], powers[3]};
            const unsigned a_at = shared_address(shared) + stage * stage_bytes + half * part_bytes;
            const unsigned long long a = descriptor(a_at), low = piece / 16;
            const unsigned long long b =
                descriptor(shared_address(shared) + stage * stage_bytes + 2 * part_bytes, 1024, part_bytes);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < 4 * 128 && PLANES == 2; i += 128) {  // 16 pixels per step; the smaller products first
                wgmma<operand, true, true>(sum, a + low + i, b + i, i > 0);
                wgmma<operand, true, true>(sum, a + i, b + low + i, 1);
            }
#pragma unroll
            for (int i = 0; i < 4 * 128; i += 128) wgmma<operand, true, true>(sum, a + i, b + i, PLANES == 2 || i > 0);
            wgmma_commit();
            wgmma_wait<0>();
            __syncwarp();  // all lanes have read the powers
            if (lane == 0) arrive(ring.empty(stage));
#pragma unroll
            for (int i = 0; i < STEPS * 32; ++i) total[i] += sum[i] * off * windows[i / 32];
        }
        const int row = half * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
        for (int i = 0; i < STEPS * 32; ++i) {
            const int filter = row + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            const size_t own = (size_t)blockIdx.x * OUTPUTS + filter;
            if (filter >= OUTPUTS) continue;
            if (column < depth) parts[own * depth + column] = total[i];
            if (BIAS && column == depth) bias_parts[own] = total[i];
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
                           int k, int depth_) {
#if !BIAS
    float* dbias = nullptr;
#endif
    add_weight_parts<SPLIT, BIAS>(parts, bias_parts, dweight, dbias, k, depth_);
}
