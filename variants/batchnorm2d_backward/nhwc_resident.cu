// /// opbench
// title     = "nhwc, one launch: a block keeps all pixels of ACROSS vectors of channels in registers, read once"
// builds_on = "nhwc_vector"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "fewer_passes",
//     "fused",
// ]
// tune      = { ACROSS = [2, 4, 1, 8], BLOCK = [512, 256, 1024] }
// supports  = { layout = ["nhwc"], dtype = ["f32", "bf16"], epilogue = ["none", "relu"] }
// requires  = ["n * c * h * w <= 4294966272", "ITEMS * max(1, lanes * (2 if dtype == 'bf16' else 4) // 4) <= 16"]
//
// [define]
// BF16  = "dtype == 'bf16'"
// RELU  = "epilogue == 'relu'"
// LANES = "lanes"
// PACKS = "c // lanes"
// TOTAL = "n * h * w"
// ITEMS = "cdiv(TOTAL, BLOCK // ACROSS)"
//
// [[launch]]
// kernel = "batchnorm2d_backward_nhwc_resident"
// grid   = ["cdiv(PACKS, ACROSS)"]
// block  = ["BLOCK"]
// ///
//
// Deep layers have many channels and few pixels. A block keeps all pixels of a few channels of both images in
// registers, so they are read once for the sums and the result, and no kernel waits for another. With ACROSS = 2 a
// block reads 32 bytes of a pixel, a whole sector. Limits: up to 16 words of either image per thread; few channels make
// few blocks. HBM traffic is minimal: two reads, one write.

#include <opbench/batchnorm.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr unsigned DOWN = BLOCK / ACROSS;  // pixels at a time

typedef Packed<T, LANES> Pack;
typedef ChannelGradient<RELU> Channel;

extern "C" __global__ void __launch_bounds__(BLOCK)
    batchnorm2d_backward_nhwc_resident(const Pack* __restrict__ x, const Pack* __restrict__ dout,
                                       const float* __restrict__ scale, const float* __restrict__ shift,
                                       const float* __restrict__ mean, const float* __restrict__ rstd,
                                       Pack* __restrict__ dx, float* __restrict__ dscale, float* __restrict__ dshift,
                                       int n, int c, int h, int w) {
    // x, dout, dx [TOTAL][PACKS]; the others [PACKS][LANES]
    __shared__ float warps[BLOCK / 32][ACROSS][2 * LANES];
    const unsigned row = threadIdx.x / ACROSS, pack = blockIdx.x * ACROSS + threadIdx.x % ACROSS;
    const bool inside = PACKS % ACROSS == 0 || pack < PACKS;
    Pack packs[ITEMS], gradient[ITEMS];
    Channel channel_data[LANES] = {};
    float sums[2 * LANES] = {};  // of dy, then of dy * (x - mean)
    if (inside) {
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            const unsigned pixel = k * DOWN + row;
            if (TOTAL % DOWN != 0 && pixel >= TOTAL) break;
            packs[k] = __ldcs(x + (size_t)pixel * PACKS + pack);
            gradient[k] = __ldcs(dout + (size_t)pixel * PACKS + pack);
        }
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const unsigned channel = pack * LANES + lane;
            channel_data[lane] = {mean[channel], rstd[channel], rstd[channel] * scale[channel], shift[channel]};
        }
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            if (TOTAL % DOWN != 0 && k * DOWN + row >= TOTAL) break;
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                const float centred = lane_of<T>(packs[k], lane) - channel_data[lane].mean;
                const float dy = channel_data[lane].masked_gradient(centred, lane_of<T>(gradient[k], lane));
                sums[lane] += dy;
                sums[LANES + lane] += dy * centred;
            }
        }
    }
    column_sums<BLOCK, ACROSS>(sums, warps);
    if (!inside) return;
    const float share = 1.0f / (float)TOTAL;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        const unsigned channel = pack * LANES + lane;
        const float sum = sums[lane], product = sums[LANES + lane] * channel_data[lane].rstd;
        sums[lane] = sum * share;
        sums[LANES + lane] = product * share * channel_data[lane].rstd;
        if (row != 0) continue;
        dscale[channel] = product;
        dshift[channel] = sum;
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const unsigned pixel = k * DOWN + row;
        if (TOTAL % DOWN != 0 && pixel >= TOTAL) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float centred = lane_of<T>(packs[k], lane) - channel_data[lane].mean;
            const float dy = channel_data[lane].masked_gradient(centred, lane_of<T>(gradient[k], lane));
            const float rest = dy - sums[lane] - centred * sums[LANES + lane];
            reinterpret_cast<T*>(&packs[k])[lane] = (T)(channel_data[lane].factor * rest);
        }
        __stcs(dx + (size_t)pixel * PACKS + pack, packs[k]);
    }
}
