// /// opbench
// mechanism = [
//     "coalesced", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes", "fewer_passes",
//     "split_k",
// ]
// supports = { layout = ["nhwc"], dtype = ["f32", "bf16"], epilogue = ["none", "relu"] }
// requires = ["n * c * h * w <= 4294966272", "cdiv(c // WIDTH, ACROSS) <= 65535"]
//
// [define]
// BF16   = "dtype == 'bf16'"
// RELU   = "epilogue == 'relu'"
// C      = "c"
// ACROSS = "min(c // WIDTH, 32)"
// DOWN   = "BLOCK // ACROSS"
//
// [workspace]
// part_sum     = "c * PARTS"
// part_product = "c * PARTS"
//
// [[launch]]
// kernel = "sums_of_parts"
// grid   = ["PARTS", "cdiv(c // WIDTH, ACROSS)"]
// block  = ["BLOCK"]
// args   = ["x", "dout", "scale", "shift", "mean", "rstd", "part_sum", "part_product", "n * h * w"]
//
// [[launch]]
// kernel = "sums_of_channels"
// grid   = ["c"]
// block  = ["128"]
// args   = ["part_sum", "part_product", "dscale", "dshift"]
//
// [[launch]]
// kernel = "apply"
// grid   = ["cdiv(cdiv(n * h * w, UNROLL) * (c // WIDTH), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "dout", "scale", "shift", "mean", "rstd", "dscale", "dshift", "dx", "n * h * w"]
//
// [variant.nhwc_split]
// title     = "nhwc: one thread per channel, pixels split over up to SPLIT blocks; a second kernel adds sums"
// builds_on = "one_pass"
// tune      = { SPLIT = [512, 1024, 256], BLOCK = [256, 512] }
// define    = { WIDTH = "1", UNROLL = "1", BACKWARDS = "0", PARTS = "min(SPLIT, cdiv(n * h * w, 4 * DOWN))" }
//
// [variant.nhwc_vector]
// title     = "nhwc: 16-byte accesses along the channels, UNROLL pixels of both inputs in flight per thread"
// builds_on = "nhwc_split"
// mechanism = ["vectorised_access", "unrolled"]
// tune      = { SPLIT = [1024, 512, 2048], UNROLL = [4, 2], BLOCK = [256, 512], BACKWARDS = [1, 0] }
// define    = { WIDTH = "lanes", PARTS = "min(SPLIT, cdiv(n * h * w, UNROLL * DOWN))" }
// ///
//
// Neighbouring lanes process neighbouring channels, so accesses use whole sectors, and each thread keeps the sums of
// its channels in registers. The rows of threads in a block process different pixels; a tree reduction in shared memory
// adds their sums. The number of parts depends only on the problem, and the order of each sum is fixed, so the bits are
// the same on every GPU. x - mean is computed before any product, so that a mean of many standard deviations loses no
// precision. With BACKWARDS, the second pass starts from the end of the images, which the L2 cache still holds. Limits:
// nhwc_split has 4 bytes (2) per access; nhwc_vector is bound by HBM, through which both images pass twice.

#include <opbench/batchnorm.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr unsigned PACKS = C / WIDTH;  // of a pixel

typedef Packed<T, WIDTH> Pack;
typedef ChannelGradient<RELU> Channel;

extern "C" __global__ void __launch_bounds__(BLOCK)
    sums_of_parts(const Pack* __restrict__ x, const Pack* __restrict__ dout, const float* __restrict__ scale,
                  const float* __restrict__ shift, const float* __restrict__ mean, const float* __restrict__ rstd,
                  float* __restrict__ part_sum, float* __restrict__ part_product, unsigned pixels) {
    // x, dout [pixels][PACKS]; part_sum, part_product [PARTS][C]; the others [C]
    __shared__ float shared[2 * WIDTH][BLOCK];
    const unsigned t = threadIdx.x, row = t / ACROSS, pack = blockIdx.y * ACROSS + t % ACROSS;
    const unsigned size = (pixels + PARTS - 1) / PARTS, end = min((blockIdx.x + 1) * size, pixels);
    float sums[2 * WIDTH] = {};  // of dy, then of dy * (x - mean)
    if (row < DOWN && pack < PACKS) {
        Channel channel_data[WIDTH];
#pragma unroll
        for (int lane = 0; lane < WIDTH; ++lane) {
            const unsigned channel = pack * WIDTH + lane;
            channel_data[lane] = {mean[channel], rstd[channel], rstd[channel] * scale[channel], shift[channel]};
        }
        for (unsigned first = blockIdx.x * size + row; first < end; first += UNROLL * DOWN) {
            Pack packs[UNROLL], gradient[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                if (first + u * DOWN >= end) break;
                packs[u] = x[(size_t)(first + u * DOWN) * PACKS + pack];
                gradient[u] = dout[(size_t)(first + u * DOWN) * PACKS + pack];
            }
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                if (first + u * DOWN >= end) break;
#pragma unroll
                for (int lane = 0; lane < WIDTH; ++lane) {
                    const float centred = lane_of<T>(packs[u], lane) - channel_data[lane].mean;
                    const float dy = channel_data[lane].masked_gradient(centred, lane_of<T>(gradient[u], lane));
                    sums[lane] += dy;
                    sums[WIDTH + lane] += dy * centred;
                }
            }
        }
    }
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) shared[k][t] = sums[k];
    for (unsigned rows = DOWN, half; rows > 1; rows = half) {
        half = (rows + 1) / 2;
        __syncthreads();
        if (row + half >= rows) continue;
#pragma unroll
        for (int k = 0; k < 2 * WIDTH; ++k) shared[k][t] += shared[k][t + half * ACROSS];
    }
    if (row != 0 || pack >= PACKS) return;
#pragma unroll
    for (int lane = 0; lane < WIDTH; ++lane) {
        const unsigned channel = pack * WIDTH + lane;
        part_sum[blockIdx.x * C + channel] = shared[lane][t];
        part_product[blockIdx.x * C + channel] = shared[WIDTH + lane][t] * rstd[channel];
    }
}

extern "C" __global__ void __launch_bounds__(128)
    sums_of_channels(const float* __restrict__ part_sum, const float* __restrict__ part_product,
                     float* __restrict__ dscale, float* __restrict__ dshift) {
    // part_sum, part_product [PARTS][C]; dscale, dshift [C]
    __shared__ float sums[4], products[4];
    const int channel = blockIdx.x;
    float sum = 0.0f, product = 0.0f;
#pragma unroll 4
    for (unsigned part = threadIdx.x; part < PARTS; part += 128) {
        sum += part_sum[part * C + channel];
        product += part_product[part * C + channel];
    }
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
    dshift[channel] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    dscale[channel] = (products[0] + products[1]) + (products[2] + products[3]);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    apply(const Pack* __restrict__ x, const Pack* __restrict__ dout, const float* __restrict__ scale,
          const float* __restrict__ shift, const float* __restrict__ mean, const float* __restrict__ rstd,
          const float* __restrict__ dscale, const float* __restrict__ dshift, Pack* __restrict__ dx, unsigned pixels) {
    // x, dout, dx [pixels][PACKS]; the others [C]
    const unsigned groups = (pixels + UNROLL - 1) / UNROLL;
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= groups * PACKS) return;
    const unsigned pack = i % PACKS, group = BACKWARDS ? groups - 1 - i / PACKS : i / PACKS;  // UNROLL pixels each
    Pack packs[UNROLL], gradient[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned pixel = group * UNROLL + u;
        if (pixel >= pixels) break;
        packs[u] = __ldcs(x + (size_t)pixel * PACKS + pack);
        gradient[u] = __ldcs(dout + (size_t)pixel * PACKS + pack);
    }
    const float share = 1.0f / (float)pixels;
    Channel channel_data[WIDTH];
    float constant[WIDTH], slope[WIDTH];
#pragma unroll
    for (int lane = 0; lane < WIDTH; ++lane) {
        const unsigned channel = pack * WIDTH + lane;
        channel_data[lane] = {mean[channel], rstd[channel], rstd[channel] * scale[channel], shift[channel]};
        constant[lane] = dshift[channel] * share;
        slope[lane] = dscale[channel] * share * rstd[channel];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned pixel = group * UNROLL + u;
        if (pixel >= pixels) break;
        Pack result;
#pragma unroll
        for (int lane = 0; lane < WIDTH; ++lane) {
            const float centred = lane_of<T>(packs[u], lane) - channel_data[lane].mean;
            const float dy = channel_data[lane].masked_gradient(centred, lane_of<T>(gradient[u], lane));
            const float rest = dy - constant[lane] - centred * slope[lane];
            reinterpret_cast<T*>(&result)[lane] = (T)(channel_data[lane].factor * rest);
        }
        __stcs(dx + (size_t)pixel * PACKS + pack, result);
    }
}
