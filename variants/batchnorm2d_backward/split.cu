// /// opbench
// mechanism = [
//     "coalesced", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes", "grid_stride",
//     "fewer_passes", "split_k",
// ]
// supports = { dtype = ["f32", "bf16"], epilogue = ["none", "relu"] }
// requires = ["n * c * h * w <= 4294966272", "c <= 65535"]
//
// [define]
// BF16  = "dtype == 'bf16'"
// RELU  = "epilogue == 'relu'"
// C     = "c"
// PLANE = "h * w"
//
// [workspace]
// part_sum     = "c * PARTS"
// part_product = "c * PARTS"
//
// [[launch]]
// kernel = "sums_of_parts"
// grid   = ["PARTS", "c"]
// block  = ["BLOCK"]
// args   = ["x", "dout", "scale", "shift", "mean", "rstd", "part_sum", "part_product", "n"]
//
// [[launch]]
// kernel = "sums_of_channels"
// grid   = ["c"]
// block  = ["128"]
// args   = ["part_sum", "part_product", "dscale", "dshift"]
//
// [[launch]]
// kernel = "apply"
// grid   = ["cdiv(n * c * h * w // WIDTH, BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// args   = ["x", "dout", "scale", "shift", "mean", "rstd", "dscale", "dshift", "dx", "n"]
//
// [variant.split]
// title     = "up to SPLIT blocks per channel; a second kernel adds partial sums, a third one applies them"
// builds_on = "one_pass"
// tune      = { SPLIT = [32, 16, 64], BLOCK = [256, 512] }
// define    = { WIDTH = "1", UNROLL = "1", BACKWARDS = "0", PARTS = "min(SPLIT, cdiv(n * h * w, BLOCK))" }
//
// [variant.vectorised]
// title     = "16-byte accesses, UNROLL vectors in flight; the last pass runs backwards to hit the L2 cache"
// builds_on = "split"
// mechanism = ["vectorised_access", "unrolled"]
// tune      = { SPLIT = [32, 16, 64], UNROLL = [2, 4, 1], BLOCK = [256, 512], BACKWARDS = [1, 0] }
// define    = { WIDTH = "lanes", PARTS = "min(SPLIT, cdiv(n * h * w // lanes, BLOCK * UNROLL))" }
// ///
//
// The number of parts depends only on the problem, and the order of each sum is fixed: the same bits on every GPU,
// whatever block finishes first. The mean is subtracted from x before anything is multiplied, so a mean of many
// standard deviations loses no precision; x * a + b with the mean inside b would. Both passes compute the ReLU's mask
// again, by the same expression as the forward pass, so its output is not read. Limits: split moves only 4 bytes (2 in
// bf16) per access; vectorised is limited by HBM, from which both images are read twice. If the convolution's gradient
// computed the sums in its epilogue, one pass would be enough.

#include <opbench/batchnorm.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr unsigned VECTORS = PLANE / WIDTH;  // vectors of a plane

typedef Packed<T, WIDTH> Pack;
typedef ChannelGradient<RELU> Channel;

// Add both sums over the block; thread 0 gets the result.
template <int WARPS>
__device__ __forceinline__ void over_block(float& sum, float& product) {
    __shared__ float sums[WARPS], products[WARPS];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, distance);
        product += __shfl_down_sync(0xffffffffu, product, distance);
    }
    if (threadIdx.x % 32 == 0) {
        sums[threadIdx.x / 32] = sum;
        products[threadIdx.x / 32] = product;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int warp = 1; warp < WARPS; ++warp) {
        sum += sums[warp];
        product += products[warp];
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    sums_of_parts(const Pack* __restrict__ x, const Pack* __restrict__ dout, const float* __restrict__ scale,
                  const float* __restrict__ shift, const float* __restrict__ mean, const float* __restrict__ rstd,
                  float* __restrict__ part_sum, float* __restrict__ part_product, int n) {
    // x, dout [n][C][VECTORS]; part_sum, part_product [C][PARTS]; the others [C]
    const unsigned part = blockIdx.x, channel = blockIdx.y, all = (unsigned)n * VECTORS;
    const unsigned size = (all + PARTS - 1) / PARTS, end = min((part + 1) * size, all);
    const Channel own = {mean[channel], rstd[channel], rstd[channel] * scale[channel], shift[channel]};
    float sum = 0.0f, product = 0.0f;  // product: not yet multiplied by rstd
    for (unsigned first = part * size + threadIdx.x; first < end; first += UNROLL * BLOCK) {
        Pack pack[UNROLL], gradient[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const unsigned i = first + u * BLOCK;
            if (i >= end) break;
            const size_t at = ((size_t)(i / VECTORS) * C + channel) * VECTORS + i % VECTORS;
            pack[u] = x[at];
            gradient[u] = dout[at];
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (first + u * BLOCK >= end) break;
#pragma unroll
            for (int lane = 0; lane < WIDTH; ++lane) {
                const float centred = lane_of<T>(pack[u], lane) - own.mean;
                const float dy = own.masked_gradient(centred, lane_of<T>(gradient[u], lane));
                sum += dy;
                product += dy * centred;
            }
        }
    }
    product *= own.rstd;
    over_block<BLOCK / 32>(sum, product);
    if (threadIdx.x != 0) return;
    part_sum[channel * PARTS + part] = sum;
    part_product[channel * PARTS + part] = product;
}

extern "C" __global__ void __launch_bounds__(128)
    sums_of_channels(const float* __restrict__ part_sum, const float* __restrict__ part_product,
                     float* __restrict__ dscale, float* __restrict__ dshift) {
    // part_sum, part_product [C][PARTS]; dscale, dshift [C]
    const int channel = blockIdx.x;
    float sum = 0.0f, product = 0.0f;
    for (unsigned part = threadIdx.x; part < PARTS; part += 128) {
        sum += part_sum[channel * PARTS + part];
        product += part_product[channel * PARTS + part];
    }
    over_block<4>(sum, product);
    if (threadIdx.x != 0) return;
    dscale[channel] = product;
    dshift[channel] = sum;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    apply(const Pack* __restrict__ x, const Pack* __restrict__ dout, const float* __restrict__ scale,
          const float* __restrict__ shift, const float* __restrict__ mean, const float* __restrict__ rstd,
          const float* __restrict__ dscale, const float* __restrict__ dshift, Pack* __restrict__ dx, int n) {
    // x, dout, dx [n][C][VECTORS]; the others [C]
    const unsigned all = (unsigned)n * (C * VECTORS);
    const unsigned first = (BACKWARDS ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * (BLOCK * UNROLL) + threadIdx.x;
    const float share = 1.0f / ((float)n * PLANE);
    Pack pack[UNROLL], gradient[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * BLOCK >= all) break;
        pack[u] = __ldcs(x + first + u * BLOCK);
        gradient[u] = __ldcs(dout + first + u * BLOCK);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= all) break;
        const int channel = (int)(i / VECTORS % C);
        const Channel own = {mean[channel], rstd[channel], rstd[channel] * scale[channel], shift[channel]};
        const float constant = dshift[channel] * share, slope = dscale[channel] * share * own.rstd;
        Pack result;
#pragma unroll
        for (int lane = 0; lane < WIDTH; ++lane) {
            const float centred = lane_of<T>(pack[u], lane) - own.mean;
            const float dy = own.masked_gradient(centred, lane_of<T>(gradient[u], lane));
            reinterpret_cast<T*>(&result)[lane] = (T)(own.factor * (dy - constant - centred * slope));
        }
        __stcs(dx + i, result);
    }
}
