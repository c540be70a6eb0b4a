// /// opbench
// title     = "nhwc, small images: image and dout in shared memory, threads split filter elements and pixels"
// builds_on = "implicit_gemm_split"
// mechanism = ["coalesced", "shared_memory_tile", "register_tile", "compile_time_sizes"]
// supports  = { layout = ["nhwc"], bias = ["no", "yes"], dtype = ["f32", "bf16"] }
// tune      = { K_REGS = [4, 6, 8, 2, 1], PIXELS = [5, 4], TARGET = [512, 256], IMAGES = [1, 2], BANDS = [1, 4] }
// where     = ["IMAGES == 1 or BANDS == 1"]
// workspace = { parts = "PARTS * SUMS * COLUMNS" }
// requires  = [
//     "k % K_REGS == 0 and (K_REGS > 2 or k % (2 * K_REGS) != 0)", "THREADS <= 1024", "s * K_REGS + WINDOW <= 200",
//     "THREADS * (s * K_REGS + WINDOW + 24) <= 65536", "4 * SHARED <= 200 * 1024", "BANDS <= p",
//     "PARTS * SUMS * COLUMNS <= 2 ** 28",
// ]
//
// [define]
// BF16    = "dtype == 'bf16'"
// BIAS    = "1 if bias == 'yes' else 0"
// C       = "c"
// HEIGHT = "h"
// WIDTH = "w"
// FILTERS = "k"
// R       = "r"
// S       = "s"
// OUT_HEIGHT = "p"
// OUT_WIDTH = "q"
// STRIDE  = "stride"
// PADDING = "padding"
// BATCH = "n"
// WINDOW  = "(PIXELS - 1) * stride + s"
// SUMS    = "s * K_REGS"
// TAPS    = "r * c + BIAS"
// COLUMNS = "TAPS * cdiv(k, K_REGS)"
// BAND    = "cdiv(p, BANDS)"
// ACROSS  = "cdiv(q, PIXELS)"
// STRIPS  = "cdiv(BAND * ACROSS, cdiv(BAND * ACROSS, max(1, TARGET // COLUMNS)))"
// THREADS = "COLUMNS * STRIPS"
// PARTS   = "cdiv(n * BANDS, IMAGES)"
// LINES   = "(BAND - 1) * stride + r"
// LEFT    = "cdiv(padding * c, 4) * 4"
// LINE    = "cdiv(LEFT - padding * c + ((ACROSS * PIXELS - 1) * stride + s) * c, 4) * 4"
// PITCH   = "LINE + (c - LINE) % 32"
// D_PITCH = "cdiv(ACROSS * PIXELS * k - 4, 8) * 8 + 4"
// TO_NEXT = "COLUMNS * SUMS + (COLUMNS - COLUMNS * SUMS) % 32"
// D_START = "cdiv((LINES + BIAS) * PITCH, 4) * 4"
// SHARED  = "max(D_START + BAND * D_PITCH, STRIPS * TO_NEXT)"
//
// [[launch]]
// kernel = "conv2d_wgrad_nhwc_image_shared"
// grid   = ["PARTS"]
// block  = ["THREADS"]
// shared = "4 * SHARED"
// args   = ["image", "dout", "parts"]
//
// [[launch]]
// kernel = "conv2d_wgrad_nhwc_add_images"
// grid   = ["cdiv(SUMS * COLUMNS, 32)"]
// block  = [32, 16]
// args   = ["parts", "dweight", "dbias?"]
// ///
//
// LeNet's second convolution with 128 images has 30 million multiply-adds and a megabyte of data, which takes no longer
// than the launch of its kernels. So the kernel must read memory once, with all loads in flight together, and have no
// barrier in its inner loop. A block copies an image, with zeros around it, and the image's dout into shared memory, or
// a band of rows of both.
//
// A thread keeps S * K_REGS sums in registers: those of one filter row and one channel for K_REGS filters. It processes
// PIXELS neighbouring pixels at a time. At stride 1, S + PIXELS - 1 loads of the image and, per pixel, one load of
// K_REGS values of dout, which neighbouring threads share, are used for PIXELS * S * K_REGS multiply-adds. For the
// gradient of the bias, a line of ones replaces the image.
//
// The sums of a block's strips are added in order from shared memory, and a second kernel adds the sums of the blocks.
// The order does not depend on the GPU, so the bits are the same on every GPU. Sizes are constants, so no index needs a
// division by a variable. Limit: two launches and one access to memory each; expected to be 1 µs of multiply-adds for a
// layer of LeNet with 128 images.

#include <opbench/float_lines.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int CHUNKS = BAND * ACROSS;

// image [n][HEIGHT][WIDTH][C], dout [n][OUT_HEIGHT][OUT_WIDTH][FILTERS], parts [PARTS][S][K_REGS][COLUMNS]
// lines [LINES][PITCH], with BIAS a line of ones, gradients [BAND][D_PITCH]; afterwards sums [STRIPS][SUMS][COLUMNS]
extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_wgrad_nhwc_image_shared(const T* __restrict__ image, const T* __restrict__ dout, float* __restrict__ parts) {
    extern __shared__ __align__(16) float shared[];
    float* const lines = shared;
    float* const gradients = shared + D_START;
    const int column = threadIdx.x % COLUMNS, strip = threadIdx.x / COLUMNS;
    const int tap = column % TAPS, group = column / TAPS;
    const bool ones = BIAS && tap == R * C;
    const float* const windows = ones ? lines + LINES * PITCH : lines + tap / C * PITCH + tap % C + LEFT - PADDING * C;
    const int next_row = ones ? 0 : STRIDE * PITCH;
#if BIAS
    for (int e = threadIdx.x; e < PITCH; e += THREADS) lines[LINES * PITCH + e] = 1.0f;
#endif

    float sum[S][K_REGS] = {};
    const int begin = blockIdx.x * IMAGES, end = min(begin + IMAGES, BATCH * BANDS);
    for (int unit = begin; unit < end; ++unit) {
        const int item = unit / BANDS, row0 = unit % BANDS * BAND;
        if (unit > begin) __syncthreads();
        load_image_rows_to_shared<THREADS, LINES, LINE, PITCH, LEFT, WIDTH * C, HEIGHT>(
            lines, image + (size_t)item * HEIGHT * WIDTH * C, row0 * STRIDE - PADDING);
        load_image_rows_to_shared<THREADS, BAND, D_PITCH, D_PITCH, 0, OUT_WIDTH * FILTERS, OUT_HEIGHT>(
            gradients, dout + (size_t)item * OUT_HEIGHT * OUT_WIDTH * FILTERS, row0);
        __syncthreads();
#pragma unroll 1
        for (int chunk = strip; chunk < CHUNKS; chunk += STRIPS) {
            const int row = chunk / ACROSS, x = chunk % ACROSS * PIXELS;
            const float* const from = windows + row * next_row + x * STRIDE * C;
            const float* const gradient = gradients + row * D_PITCH + x * FILTERS + group * K_REGS;
            float window[WINDOW];
#pragma unroll
            for (int e = 0; e < WINDOW; ++e) window[e] = from[e * C];
#pragma unroll
            for (int u = 0; u < PIXELS; ++u) {
                float filters[K_REGS];
                load_group<K_REGS>(filters, gradient + u * FILTERS);
#pragma unroll
                for (int j = 0; j < S; ++j)
#pragma unroll
                    for (int v = 0; v < K_REGS; ++v) sum[j][v] += filters[v] * window[u * STRIDE + j];
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < SUMS; ++e) shared[strip * TO_NEXT + e * COLUMNS + column] = sum[e / K_REGS][e % K_REGS];
    __syncthreads();
    float* const block_parts = parts + (size_t)blockIdx.x * SUMS * COLUMNS;
    for (int e = threadIdx.x; e < SUMS * COLUMNS; e += THREADS) {
        float total = 0.0f;
#pragma unroll 8
        for (int z = 0; z < STRIPS; ++z) total += shared[z * TO_NEXT + e];
        block_parts[e] = total;
    }
}

// parts [PARTS][S][K_REGS][COLUMNS], dweight [FILTERS][R][S][C], dbias [FILTERS]; 32 sums a block, each by 16 threads
extern "C" __global__ void __launch_bounds__(512)
    conv2d_wgrad_nhwc_add_images(const float* __restrict__ parts, float* __restrict__ dweight
#if BIAS
                                 ,
                                 float* __restrict__ dbias
#endif
    ) {
    __shared__ float partial_sums[16][32];
    const int index = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    if (index < SUMS * COLUMNS) {
#pragma unroll 8
        for (int z = threadIdx.y; z < PARTS; z += 16) sum += parts[(size_t)z * SUMS * COLUMNS + index];
    }
    partial_sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || index >= SUMS * COLUMNS) return;
#pragma unroll
    for (int y = 1; y < 16; ++y) sum += partial_sums[y][threadIdx.x];
    const int column = index % COLUMNS, tap = column % TAPS, j = index / COLUMNS / K_REGS;
    const int filter = column / TAPS * K_REGS + index / COLUMNS % K_REGS;
    if (tap < R * C) dweight[((filter * R + tap / C) * S + j) * C + tap % C] = sum;
#if BIAS
    if (tap == R * C && j == 0) dbias[filter] = sum;
#endif
}
