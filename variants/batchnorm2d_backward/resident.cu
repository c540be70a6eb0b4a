// /// opbench
// title     = "one launch: one block per channel keeps both inputs in registers, so that each is read once"
// builds_on = "vectorised"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "fewer_passes", "fused",
// ]
// tune      = { BLOCK = [512, 256, 1024, 128] }
// supports  = { dtype = ["f32", "bf16"], epilogue = ["none", "relu"] }
// requires  = ["n * c * h * w <= 4294966272", "ITEMS * max(1, lanes * (2 if dtype == 'bf16' else 4) // 4) <= 16"]
//
// [define]
// BF16  = "dtype == 'bf16'"
// RELU  = "epilogue == 'relu'"
// LANES = "lanes"
// C     = "c"
// PLANE = "h * w"
// TOTAL = "n * h * w // lanes"
// ITEMS = "cdiv(TOTAL, BLOCK)"
//
// [[launch]]
// kernel = "batchnorm2d_backward_resident"
// grid   = ["c"]
// block  = ["BLOCK"]
// ///
//
// Deep layers have many channels and few pixels. A block keeps one channel of both images in registers, so they are
// read once for the sums and the result, and no kernel waits for another. Limits: up to 16 words of either image per
// thread, 16384 floats per channel; if there are fewer channels than multiprocessors, some are idle. HBM traffic is
// minimal: two reads, one write.

#include <opbench/batchnorm.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr unsigned VECTORS = PLANE / LANES;  // of a plane

typedef Packed<T, LANES> Pack;
typedef ChannelGradient<RELU> Channel;

extern "C" __global__ void __launch_bounds__(BLOCK)
    batchnorm2d_backward_resident(const Pack* __restrict__ x, const Pack* __restrict__ dout,
                                  const float* __restrict__ scale, const float* __restrict__ shift,
                                  const float* __restrict__ mean, const float* __restrict__ rstd, Pack* __restrict__ dx,
                                  float* __restrict__ dscale, float* __restrict__ dshift, int n, int c, int h, int w) {
    // x, dout, dx [n][C][VECTORS]; the others [C]
    __shared__ float warps[BLOCK / 32][2];
    const int channel = blockIdx.x;
    const auto at = [=](unsigned i) { return ((size_t)(i / VECTORS) * C + channel) * VECTORS + i % VECTORS; };
    const Channel own = {mean[channel], rstd[channel], rstd[channel] * scale[channel], shift[channel]};
    Pack pack[ITEMS], gradient[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const unsigned i = k * BLOCK + threadIdx.x;
        if (TOTAL % BLOCK != 0 && i >= TOTAL) break;
        pack[k] = __ldcs(x + at(i));
        gradient[k] = __ldcs(dout + at(i));
    }
    float sums[2] = {0.0f, 0.0f};  // of dy and of dy * (x - mean)
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (TOTAL % BLOCK != 0 && k * BLOCK + threadIdx.x >= TOTAL) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float centred = lane_of<T>(pack[k], lane) - own.mean;
            const float dy = own.masked_gradient(centred, lane_of<T>(gradient[k], lane));
            sums[0] += dy;
            sums[1] += dy * centred;
        }
    }
    block_sums<BLOCK>(sums, warps);
    const float sum = sums[0], product = sums[1] * own.rstd, share = 1.0f / ((float)TOTAL * LANES);
    const float constant = sum * share, slope = product * share * own.rstd;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const unsigned i = k * BLOCK + threadIdx.x;
        if (TOTAL % BLOCK != 0 && i >= TOTAL) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float centred = lane_of<T>(pack[k], lane) - own.mean;
            const float dy = own.masked_gradient(centred, lane_of<T>(gradient[k], lane));
            reinterpret_cast<T*>(&pack[k])[lane] = (T)(own.factor * (dy - constant - centred * slope));
        }
        __stcs(dx + at(i), pack[k]);
    }
    if (threadIdx.x != 0) return;
    dscale[channel] = product;
    dshift[channel] = sum;
}
