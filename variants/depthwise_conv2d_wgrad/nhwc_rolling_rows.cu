// /// opbench
// title     = "nhwc: a thread moves down PIXELS columns and keeps rows of dout: each pixel is loaded once"
// builds_on = "nhwc_split"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "compile_time_sizes", "register_tile", "split_k",
//     "overlapped_launch",
// ]
// supports  = { layout = ["nhwc"], bias = ["no", "yes"], dtype = ["f32", "bf16"] }
// tune      = { PIXELS = [2, 4], DOWN = [8, 4], SPLIT = [264, 528, 396] }
// where     = ["(PIXELS, DOWN, SPLIT) in ((2, 8, 264), (2, 4, 528), (4, 8, 264), (4, 4, 396))"]
// requires  = [
//     "n * c * h * w < 2 ** 31 and n * c * p * q < 2 ** 31", "r * s <= 49", "cdiv(c // lanes, ACROSS) <= 65535",
//     "SPAN <= 24 and PIXELS * AGES <= 28",
// ]
//
// [define]
// BF16 = "dtype == 'bf16'"
// BIAS = "bias == 'yes'"
// LANES = "lanes"
// R = "r"
// S = "s"
// STRIDE = "stride"
// DILATION = "dilation"
// SPAN = "(PIXELS - 1) * stride + (s - 1) * dilation + 1"
// AGES = "(r - 1) * dilation // stride + 1"
// SUMS = "r * s + (1 if bias == 'yes' else 0)"
// ACROSS = "32 if c // lanes >= 24 else 8"
// PARTS = "min(cdiv(SPLIT, cdiv(c // lanes, ACROSS)), cdiv(cdiv(n * cdiv(q, PIXELS), DOWN) * p, 4))"
//
// [workspace]
// parts = "PARTS * SUMS * c"
//
// [[launch]]
// kernel = "depthwise_wgrad_rolling_rows"
// grid   = ["PARTS", "cdiv(c // lanes, ACROSS)"]
// block  = ["ACROSS", "DOWN"]
// shared = "SUMS * DOWN * ACROSS * lanes * 4"
// args   = ["image", "dout", "parts", "n", "c // lanes", "h", "w", "padding", "p", "q"]
//
// [[launch]]
// kernel = "depthwise_wgrad_add_parts"
// grid   = ["cdiv(SUMS * c, 32)"]
// block  = ["512"]
// args   = ["parts", "dweight", "dbias?", "c"]
// programmatic = true
// ///
//
// nhwc_split loads r * s vectors of the image for each vector of dout. Here a thread goes down a strip of PIXELS
// columns of dout. It keeps the last rows of dout in registers, and multiplies each row of the image by all of them
// when the row arrives. So at stride 1 it loads only PIXELS + s - 1 vectors of the image per row; neighbouring warps,
// which go down neighbouring strips, load the vectors that they share from the L1 cache. All loads of a row are in
// flight together. The second kernel starts while the first one ends, and 16 threads share the partial sums of each
// result. Limit: DRAM, and the (r - 1) * dilation image rows that two blocks both read, at the end of one strip and the
// start of the next.

#include <opbench/overlap.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Packed<T, LANES> Pack;
constexpr int THREADS = ACROSS * DOWN;
constexpr int ROWS = STRIDE < (R - 1) * DILATION + 1 ? STRIDE : (R - 1) * DILATION + 1;  // image rows per row of dout

extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise_wgrad_rolling_rows(const Pack* __restrict__ image, const Pack* __restrict__ dout, float* parts, int n,
                                 int vectors, int h, int w, int padding, int p, int q) {
    // image [n][h][w][vectors]; dout [n][p][q][vectors]; parts [PARTS][SUMS][vectors][LANES]
    extern __shared__ __align__(16) float shared[];  // [SUMS][DOWN][ACROSS][LANES]
    let_next_launch_start();
    const int first_vector = blockIdx.y * ACROSS, vector = first_vector + threadIdx.x;
    const int strips = (q + PIXELS - 1) / PIXELS, all = (n * strips + DOWN - 1) / DOWN * p;  // rows of DOWN strips
    const int share = (all + PARTS - 1) / PARTS, end = min(all, (int)(blockIdx.x + 1) * share);
    float sums[SUMS][LANES] = {};
    for (int at = blockIdx.x * share; at < end;) {
        const int first = at % p, last = min(p, first + end - at), strip = at / p * DOWN + threadIdx.y;
        at += last - first;
        if (vector >= vectors || strip >= n * strips) continue;
        const int number = strip / strips, column = strip % strips * PIXELS, x = column * STRIDE - padding;
        const Pack* const pixels = image + (size_t)number * h * w * vectors + vector;
        const Pack* const gradients = dout + (size_t)number * p * q * vectors + vector;
        const int last_row = min(h - 1, (last - 1) * STRIDE - padding + (R - 1) * DILATION);
        Pack gradient[AGES][PIXELS];
        for (int top = first; top < last + AGES - 1; top += AGES) {
#pragma unroll
            for (int slot = 0; slot < AGES; ++slot) {
                const int y = top + slot;
                if (y >= last + AGES - 1) break;
                Pack window[ROWS][SPAN];
#pragma unroll
                for (int pixel = 0; pixel < PIXELS; ++pixel) {
                    gradient[slot][pixel] = Pack();
                    if (y < last && column + pixel < q)
                        gradient[slot][pixel] = load_packed<true>(gradients + (y * q + column + pixel) * vectors);
                }
#pragma unroll
                for (int i = 0; i < ROWS; ++i) {
                    const int row = y * STRIDE - padding + i;
#pragma unroll
                    for (int k = 0; k < SPAN; ++k) {
                        window[i][k] = Pack();
                        if (row >= 0 && row <= last_row && x + k >= 0 && x + k < w)
                            window[i][k] = pixels[(row * w + x + k) * vectors];
                    }
                }
#pragma unroll
                for (int item = 0; item < BIAS * PIXELS * LANES; ++item)
                    sums[SUMS - 1][item % LANES] += lane_of<T>(gradient[slot][item / LANES], item % LANES);
#pragma unroll
                for (int item = 0; item < ROWS * AGES; ++item) {
                    // below: the row of the filter, times DILATION
                    const int i = item % ROWS, age = item / ROWS, below = i + age * STRIDE;
                    if (below % DILATION != 0 || below / DILATION >= R) continue;
                    if (y - age < first || y - age >= last) continue;
#pragma unroll
                    for (int j = 0; j < S; ++j)
#pragma unroll
                        for (int pixel = 0; pixel < PIXELS; ++pixel)
#pragma unroll
                            for (int lane = 0; lane < LANES; ++lane)
                                sums[below / DILATION * S + j][lane] +=
                                    lane_of<T>(gradient[(slot - age + AGES) % AGES][pixel], lane) *
                                    lane_of<T>(window[i][pixel * STRIDE + j * DILATION], lane);
                }
            }
        }
    }
    constexpr int line = ACROSS * LANES;
#pragma unroll
    for (int k = 0; k < SUMS; ++k)
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane)
            shared[(k * DOWN + threadIdx.y) * line + threadIdx.x * LANES + lane] = sums[k][lane];
    __syncthreads();
    for (int e = threadIdx.y * ACROSS + threadIdx.x; e < SUMS * line; e += THREADS) {
        const int k = e / line, channel = first_vector * LANES + e % line;
        float sum = 0.0f;
#pragma unroll
        for (int row = 0; row < DOWN; ++row) sum += shared[(k * DOWN + row) * line + e % line];
        if (channel < vectors * LANES) parts[((size_t)blockIdx.x * SUMS + k) * vectors * LANES + channel] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(512) depthwise_wgrad_add_parts(const float* parts, float* dweight,
#if BIAS
                                                                            float* dbias,
#endif
                                                                            int c) {
    // parts [PARTS][SUMS][c]; dweight [R][S][c]; dbias [c]; 32 sums a block, each by 16 threads
    __shared__ float warps[16][32][1];
    wait_for_launches_before();
    const int index = blockIdx.x * 32 + threadIdx.x % 32;
    float sum[1] = {};
    if (index < SUMS * c) {
#pragma unroll 8
        for (int part = threadIdx.x / 32; part < PARTS; part += 16) sum[0] += parts[(size_t)part * SUMS * c + index];
    }
    column_sums<512>(sum, warps);
    if (threadIdx.x >= 32 || index >= SUMS * c) return;
#if BIAS
    if (index >= R * S * c) {
        dbias[index - R * S * c] = sum[0];
        return;
    }
#endif
    dweight[index] = sum[0];
}
