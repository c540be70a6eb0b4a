// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "warp_shuffle", "compile_time_sizes", "double_buffer", "tensor_core", "persistent", "few_channels",
// ]
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu", "bias_hardswish"] }
// requires  = [
//     "c <= 4",
//     "c * r * s <= 128 and r <= 32 and s <= 32",
//     "k <= 128 and k % 2 == 0",
//     "n * max(p * q * k, h * w * c) < 2 ** 31",
// ]
// compute_capability = "9.0a"
//
// [define]
// C       = "c"
// R       = "r"
// S       = "s"
// STRIDE  = "stride"
// BN      = "cdiv(k, 32) * 32"
// STEPS   = "cdiv(c * r * s, 64)"
// PLANES  = "2 if PRODUCT == 'f16x3' else 1"
// ROUNDED = "PRODUCT != 'bf16'"
// BIAS    = "epilogue != 'none'"
// EPILOGUE = "epilogue"
//
// [[launch]]
// kernel = "conv2d_nhwc_few_channels_wgmma"
// grid   = ["min(sm_count, cdiv(n * p * q, 128))"]
// block  = [512]
// shared = "STEPS * PLANES * (32768 + BN * 128) + STEPS * 1024 + 1024"
// args   = ["image", "weight", "bias?", "out", "n", "h", "w", "p", "q", "k", "padding"]
//
// [variant.nhwc_few_channels_wgmma_bf16]
// title     = "few input channels, bf16 wgmma: two warpgroups gather windows, two multiply"
// builds_on = "nhwc_few_channels_mma_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
//
// [variant.nhwc_few_channels_wgmma_f16]
// title     = "few input channels, TF32 accuracy by f16 wgmma: each window is scaled by its own power of two"
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
// Windows of one or three channels are not aligned, so TMA cannot copy them; but wgmma multiplies whatever is in shared
// memory. So the threads of two warpgroups gather the windows; the warpgroups take alternate tiles. A thread gathers 64
// elements of a window at a time, scales them by a power of two that is computed from their largest magnitude, and
// writes them as a row of the operand. The other two warpgroups each multiply 64 windows by all filters, which a block
// splits once and keeps in shared memory, and store the results. The loads of a gathering thread are independent of
// each other, and most of them hit lines that neighbouring threads have loaded. Limit: writing the output; gathering
// and shared memory. Idea: nhwc_few_channels_mma, and the producers and consumers of CUTLASS's mixed-input kernels.

#include <opbench/gathered.cuh>
#include <opbench/partials.cuh>
#include <opbench/ring.cuh>
using namespace opbench;

constexpr int depth = R * S * C, ring = 2 * STEPS, plane = 128 * 128, filter_plane = BN * 128;
constexpr int filters = ring * PLANES * plane, powers = filters + STEPS * PLANES * filter_plane;
constexpr int exponents = powers + ring * 512, barriers = exponents + 512;
#if ROUNDED
constexpr Format operand = Format::f16;
typedef float T;
#else
constexpr Format operand = Format::bf16;
typedef unsigned short T;
#endif

// A filter to each eight lanes of the block, [step][plane][filter][64], and its power of two.
__device__ __forceinline__ void split_filters(const T* __restrict__ weight, unsigned char* shared, int k) {
    for (int filter = threadIdx.x / 8; filter < BN; filter += 64) {
        const int part = threadIdx.x % 8;
        T x[STEPS][8];
        unsigned magnitude = 0;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int element = step * 64 + part * 8 + i;
                x[step][i] = filter < k && element < depth ? weight[filter * depth + element] : T(0);
            }
            magnitude = max(magnitude, largest_of(x[step]));
        }
#pragma unroll
        for (int apart = 4; apart > 0; apart /= 2)
            magnitude = max(magnitude, __shfl_xor_sync(0xffffffffu, magnitude, apart));
        const int e = exponent_for(magnitude);
        if (part == 0) reinterpret_cast<int*>(shared + exponents)[filter] = -e;
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
            write_eight<PLANES>(
                x[step], power_of_two(e),
                shared + filters + step * PLANES * filter_plane + swizzled<128>(filter * 128 + part * 16),
                filter_plane);
    }
}

// image [n][h][w][c], weight [k][r][s][c], bias [k], out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(512, 1)
    conv2d_nhwc_few_channels_wgmma(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                                   const T* __restrict__ bias,
#endif
                                   T* __restrict__ out, int n, int h, int w, int p, int q, int k, int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), full = memory + barriers, empty = full + 8 * ring;
    const int pixels = n * p * q, group = threadIdx.x / 128, lane = threadIdx.x % 32;
    const SplitK tiles((pixels + 127) / 128, blockIdx.x, gridDim.x);
    if (threadIdx.x == 0) {
        for (int i = 0; i < ring; ++i) barrier_init(full + 8 * i, 4), barrier_init(empty + 8 * i, 8);  // warps
        barrier_init_fence();
    }
    split_filters(weight, shared, k);
    fence_async();
    __syncthreads();

    if (group < 2) {
        const int line = threadIdx.x % 128;
        for (int tile = group; tile < tiles.steps; tile += 2) {
            const int pixel = (tiles.first + tile) * 128 + line, x = pixel % q * STRIDE - padding;
            const int y = pixel / q % p * STRIDE - padding;
            const T* const from = image + (((long long)(pixel / (p * q)) * h + y) * w + x) * C;
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                T v[64];
                gather_window<C, R, S>(v, step * 64, from, y, x, h, w, pixel < pixels);
                const unsigned stage = group * STEPS + step;
                const int e = ROUNDED ? exponent_for(largest_of(v)) : 0;
                wait_for(empty + 8 * stage, tile / 2 % 2 ^ 1);
                write_row<PLANES>(v, power_of_two(e), shared + stage * PLANES * plane, line, plane);
                reinterpret_cast<float*>(shared + powers)[stage * 128 + line] = power_of_two(-e);
                fence_async();
                __syncwarp();
                if (lane == 0) arrive(full + 8 * stage);
            }
        }
    } else {
        const int row = (group - 2) * 64 + threadIdx.x / 32 % 4 * 16;
        for (int tile = 0; tile < tiles.steps; ++tile) {
            float total[BN / 2] = {}, sum[BN / 2];
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const unsigned stage = tile % 2 * STEPS + step;
                wait_for(full + 8 * stage, tile / 2 % 2);
                const float* const off = reinterpret_cast<const float*>(shared + powers) + stage * 128 + row + lane / 4;
                const float above = off[0], below = off[8];
                const unsigned long long a = descriptor(memory + stage * PLANES * plane + (group - 2) * 64 * 128);
                const unsigned long long b = descriptor(memory + filters + step * PLANES * filter_plane);
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < 8 && PLANES == 2; i += 2) {  // the small ones first
                    wgmma<operand>(sum, a + plane / 16 + i, b + i, i > 0);
                    wgmma<operand>(sum, a + i, b + filter_plane / 16 + i, 1);
                }
#pragma unroll
                for (int i = 0; i < 8; i += 2) wgmma<operand>(sum, a + i, b + i, PLANES == 2 || i > 0);
                wgmma_commit();
                wgmma_wait<0>();
                __syncwarp();  // its lanes have read the powers
                if (lane == 0) arrive(empty + 8 * stage);
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) total[i] += sum[i] * (i / 2 % 2 ? below : above);
            }
#if ROUNDED
            scale_columns(total, 0, reinterpret_cast<const int*>(shared + exponents), 0, k);
#endif
#if BIAS
            add_bias<activation_of::EPILOGUE>(total, bias, 0, k);
#endif
            store_pairs(total, out, (tiles.first + tile) * 128 + row, 0, pixels, k);
        }
    }
}
