// /// opbench
// title     = "nhwc, small images: image and filters in shared memory, a row of pixels x K_REGS filters per thread"
// builds_on = "nhwc_filters_shared"
// mechanism = ["shared_memory_tile", "register_tile", "compile_time_sizes", "split_k"]
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32", "bf16"] }
// tune      = { K_REGS = [4, 2, 3, 8, 1], PIXELS = [14, 7], SPLIT = [6, 3, 1], BANDS = [1, 4] }
// where     = ["BANDS == 1 or PIXELS == 14"]
// requires  = [
//     "k % K_REGS == 0 and (K_REGS > 1 or k % 2 != 0 and k % 3 != 0)", "SPLIT <= r * c", "THREADS <= 1024",
//     "RUN * K_REGS + WINDOW + s * K_REGS <= 200", "THREADS * (RUN * K_REGS + WINDOW + s * K_REGS + 24) <= 65536",
//     "4 * SHARED <= 200 * 1024", "BANDS <= p", "n * BANDS < 2 ** 31",
// ]
//
// [define]
// BF16       = "dtype == 'bf16'"
// BIAS       = "epilogue != 'none'"
// RELU       = "epilogue == 'bias_relu'"
// C          = "c"
// HEIGHT     = "h"
// WIDTH      = "w"
// FILTERS    = "k"
// R          = "r"
// S          = "s"
// OUT_HEIGHT = "p"
// OUT_WIDTH  = "q"
// STRIDE     = "stride"
// PADDING    = "padding"
// ACROSS     = "cdiv(q, PIXELS)"
// RUN        = "cdiv(q, ACROSS)"
// BAND       = "cdiv(p, BANDS)"
// GROUPS     = "cdiv(k, K_REGS)"
// LANES      = "GROUPS * SPLIT"
// STRIPS     = "cdiv(BAND * ACROSS, cdiv(BAND * ACROSS, max(1, 512 // LANES)))"
// THREADS    = "LANES * STRIPS"
// WINDOW     = "(RUN - 1) * stride + s"
// LINES      = "(BAND - 1) * stride + r"
// LEFT       = "cdiv(padding * c, 4) * 4"
// LENGTH     = "cdiv(LEFT - padding * c + ((ACROSS * RUN - 1) * stride + s) * c, 4) * 4"
// PITCH      = "LENGTH + (SPLIT - LENGTH) % 32"
// W_START    = "cdiv(LINES * PITCH, 4) * 4"
// S_START    = "cdiv(W_START + r * s * c * k, 4) * 4"
// TO_NEXT    = "BAND * q * k + (GROUPS - BAND * q * k) % 32"
// SHARED     = "S_START + SPLIT * TO_NEXT"
//
// [[launch]]
// kernel = "conv2d_nhwc_image_shared"
// grid   = ["n * BANDS"]
// block  = ["THREADS"]
// shared = "4 * SHARED"
// args   = ["image", "weight", "bias?", "out"]
// ///
//
// The previous variant copies the filters into shared memory for every row of the output, and reads two numbers from
// there per multiply-add. Here a block copies a whole image (or a band of its rows) with zeros around it, and the
// filters, transposed so that the filter index is innermost. So memory is read once, and the kernel has only two
// barriers.
//
// A thread computes K_REGS filters of RUN neighbouring pixels in registers. For each channel of an image row it reads
// (RUN - 1) * stride + S image elements and S * K_REGS weights, for RUN * S * K_REGS multiply-adds. SPLIT threads share
// the rows and channels of a window, so that one image occupies enough threads. Their sums are added in order from
// shared memory, which also makes the stores contiguous. Sizes are constants, so no index needs a division by a
// variable. Limit: the launch and one access to memory; the multiply-adds of LeNet's second layer are expected to take
// 1.2 µs with 128 images, those of the first layer 0.7 µs.

#include <opbench/float_lines.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int CHUNKS = BAND * ACROSS, DEPTH = R * S * C;

// image [n][HEIGHT][WIDTH][C], weight [FILTERS][R][S][C], bias [FILTERS], out [n][OUT_HEIGHT][OUT_WIDTH][FILTERS];
// lines [LINES][PITCH], filters [R][S][C][FILTERS], sums [SPLIT][BAND * OUT_WIDTH][K_REGS][GROUPS]
extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_nhwc_image_shared(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                             const T* __restrict__ bias,
#endif
                             T* __restrict__ out) {
    extern __shared__ __align__(16) float shared[];
    float* const lines = shared;
    float* const filters = shared + W_START;
    float* const sums = shared + S_START;
    const int item = blockIdx.x / BANDS, row0 = blockIdx.x % BANDS * BAND;
    load_image_rows_to_shared<THREADS, LINES, LENGTH, PITCH, LEFT, WIDTH * C, HEIGHT>(
        lines, image + (size_t)item * HEIGHT * WIDTH * C, row0 * STRIDE - PADDING);
#pragma unroll 8
    for (int e = threadIdx.x; e < (DEPTH + 3) / 4 * 4 * FILTERS; e += THREADS) {
        // A warp reads four neighbouring elements of eight filters: few sectors of memory, few bank conflicts.
        const int filter = e / 4 % FILTERS, place = e / 4 / FILTERS * 4 + e % 4;
        if (place < DEPTH) filters[place * FILTERS + filter] = (float)weight[filter * DEPTH + place];
    }
    __syncthreads();

    const int group = threadIdx.x % GROUPS, split = threadIdx.x / GROUPS % SPLIT;
#pragma unroll 1
    for (int chunk = threadIdx.x / LANES; chunk < CHUNKS; chunk += STRIPS) {
        const int row = chunk / ACROSS, x0 = chunk % ACROSS * RUN;
        const float* const from = lines + row * STRIDE * PITCH + x0 * STRIDE * C + LEFT - PADDING * C;
        float sum[RUN][K_REGS] = {};
#pragma unroll 1
        for (int depth = split; depth < R * C; depth += SPLIT) {
            const int i = depth / C, channel = depth % C;
            float weights[S][K_REGS], window[WINDOW];
#pragma unroll
            for (int j = 0; j < S; ++j)
                load_group<FILTERS>(weights[j], filters + ((i * S + j) * C + channel) * FILTERS + group * K_REGS);
#pragma unroll
            for (int e = 0; e < WINDOW; ++e) window[e] = from[i * PITCH + e * C + channel];
#pragma unroll
            for (int j = 0; j < S; ++j)
#pragma unroll
                for (int u = 0; u < RUN; ++u)
#pragma unroll
                    for (int v = 0; v < K_REGS; ++v) sum[u][v] += window[u * STRIDE + j] * weights[j][v];
        }
        float* const partial_row = sums + split * TO_NEXT + (row * OUT_WIDTH + x0) * FILTERS + group;
#pragma unroll
        for (int u = 0; u < RUN; ++u)
#pragma unroll
            for (int v = 0; v < K_REGS; ++v)
                if (OUT_WIDTH % RUN == 0 || x0 + u < OUT_WIDTH) partial_row[u * FILTERS + v * GROUPS] = sum[u][v];
    }
    __syncthreads();
    const int numbers = min(BAND, OUT_HEIGHT - row0) * OUT_WIDTH * FILTERS;
    T* const to = out + ((size_t)item * OUT_HEIGHT + row0) * OUT_WIDTH * FILTERS;
    for (int e = threadIdx.x; e < numbers; e += THREADS) {
        const int filter = e % FILTERS % GROUPS * K_REGS + e % FILTERS / GROUPS;
        float total = 0.0f;
#pragma unroll
        for (int z = 0; z < SPLIT; ++z) total += sums[z * TO_NEXT + e];
#if BIAS
        total += (float)bias[filter];
#endif
#if RELU
        total = fmaxf(total, 0.0f);
#endif
        to[e - e % FILTERS + filter] = T(total);
    }
}
