// /// opbench
// title     = "nhwc, small images: dout and filters in shared memory, a row of pixels x C_REGS channels per thread"
// builds_on = "implicit_gemm"
// mechanism = ["coalesced", "shared_memory_tile", "register_tile", "compile_time_sizes", "split_k"]
// supports  = { layout = ["nhwc"], epilogue = ["none", "add", "mask"], dtype = ["f32", "bf16"] }
// tune      = { C_REGS = [3, 2, 4, 1], PIXELS = [14, 7, 12], SPLIT = [16, 8, 4, 1], BANDS = [1, 4] }
// where     = ["BANDS == 1 or PIXELS != 7"]
// requires  = [
//     "c % C_REGS == 0 and (C_REGS > 1 or c % 2 != 0 and c % 3 != 0)", "w <= PIXELS or PIXELS % stride == 0",
//     "PIXELS != 12 or 14 % stride != 0", "SPLIT <= k and (SPLIT > 1 or k < 4)", "THREADS <= 1024",
//     "RUN * C_REGS + WINDOW + s * C_REGS <= 200",
//     "THREADS * (RUN * C_REGS + WINDOW + s * C_REGS + 24) <= 65536", "4 * SHARED <= 200 * 1024", "BANDS <= h",
//     "n * BANDS < 2 ** 31",
// ]
//
// [define]
// BF16       = "dtype == 'bf16'"
// ADD        = "epilogue == 'add'"
// MASK       = "epilogue == 'mask'"
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
// RUN        = "min(PIXELS, w)"
// ACROSS     = "cdiv(w, RUN)"
// BAND       = "cdiv(h, BANDS)"
// GROUPS     = "cdiv(c, C_REGS)"
// LANES      = "GROUPS * SPLIT"
// STRIPS     = "cdiv(BAND * ACROSS, cdiv(BAND * ACROSS, max(1, 512 // LANES)))"
// THREADS    = "LANES * STRIPS"
// PHASE      = "padding % stride"
// D_FIRST    = "cdiv(PHASE - s + 1, stride)"
// WINDOW     = "max(1, (PHASE + RUN - 1) // stride - D_FIRST + 1)"
// D_LEFT     = "max(0, 0 - padding // stride - D_FIRST)"
// D_LINES    = "min(p, (BAND + r - 2) // stride + 1)"
// D_WIDE     = "max(1, D_LEFT + padding // stride + (ACROSS - 1) * (RUN // stride) + D_FIRST + WINDOW)"
// D_LENGTH   = "cdiv(D_WIDE * k, 4) * 4"
// D_PITCH    = "D_LENGTH + (SPLIT - D_LENGTH) % 32"
// W_START    = "cdiv(D_LINES * D_PITCH, 4) * 4"
// W_PITCH    = "k * c + (c - k * c) % 32"
// S_START    = "cdiv(W_START + r * s * W_PITCH, 4) * 4"
// TO_NEXT    = "BAND * w * c + (GROUPS - BAND * w * c) % 32"
// SHARED     = "S_START + SPLIT * TO_NEXT"
//
// [[launch]]
// kernel = "conv2d_dgrad_nhwc_image_shared"
// grid   = ["n * BANDS"]
// block  = ["THREADS"]
// shared = "4 * SHARED"
// args   = ["dout", "weight", "skip?", "out?", "dimage"]
// ///
//
// A layer of LeNet has 60 million additions and multiplications and a megabyte of data, which takes no longer than the
// launch of its kernel. So a block, which has an image or a band of its rows, reads dout and the filters once and needs
// only two barriers. The filters are transposed, so that channels are innermost.
//
// A thread computes C_REGS channels of RUN pixels of a row, in registers. It loops over the rows of dout that
// contribute to its own row, found by index arithmetic at any stride, and over its share of the filters. A window of
// dout and S * C_REGS weights yield up to RUN * S * C_REGS multiply-adds. If a run is the whole row, the compiler knows
// which elements are beyond the edge of dout and omits them; otherwise dout has a border of zeros. SPLIT threads share
// the filters of a run, so that an image has enough threads. Their sums are added in order from shared memory, which
// also makes the stores contiguous. Sizes are constants. Limit: the launch and one wait for memory; the multiply-adds
// of a layer of LeNet are expected to take 1.3 µs with 128 images.

#include <opbench/float_lines.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int CHUNKS = BAND * ACROSS, WEIGHTS = FILTERS * R * S * C;

// dout [n][OUT_HEIGHT][OUT_WIDTH][FILTERS], weight [FILTERS][R][S][C], other (skip or out) and dimage
// [n][HEIGHT][WIDTH][C]; in shared memory gradients [D_LINES][D_PITCH], filters [R][S][W_PITCH], sums
// [SPLIT][BAND * WIDTH][C_REGS][GROUPS]
extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_dgrad_nhwc_image_shared(const T* __restrict__ dout, const T* __restrict__ weight,
#if ADD || MASK
                                   const T* __restrict__ other,
#endif
                                   T* __restrict__ dimage) {
    extern __shared__ __align__(16) float shared[];
    float* const gradients = shared;
    float* const filters = shared + W_START;
    float* const sums = shared + S_START;
    const int item = blockIdx.x / BANDS, y0 = blockIdx.x % BANDS * BAND, reached = y0 + PADDING - R + 1;
    const int first_line = reached > 0 ? (reached + STRIDE - 1) / STRIDE : 0;
    load_image_rows_to_shared<THREADS, D_LINES, D_LENGTH, D_PITCH, D_LEFT * FILTERS, OUT_WIDTH * FILTERS, OUT_HEIGHT>(
        gradients, dout + (size_t)item * OUT_HEIGHT * OUT_WIDTH * FILTERS, first_line);
#pragma unroll 8
    for (int e = threadIdx.x; e < WEIGHTS; e += THREADS)
        filters[e / C % (R * S) * W_PITCH + e / (R * S * C) * C + e % C] = (float)weight[e];
    __syncthreads();

    const int group = threadIdx.x % GROUPS, split = threadIdx.x / GROUPS % SPLIT;
#pragma unroll 1
    for (int chunk = threadIdx.x / LANES; chunk < CHUNKS; chunk += STRIPS) {
        const int row = chunk / ACROSS, strip = chunk % ACROSS, y = y0 + row + PADDING;
        float sum[RUN][C_REGS] = {};
        int line = y / STRIDE;
#pragma unroll 1
        for (int i = y % STRIDE; i < R; i += STRIDE, --line) {
            if (line < 0 || line >= OUT_HEIGHT || line < first_line || line >= first_line + D_LINES) continue;
            const float* const from = gradients + (line - first_line) * D_PITCH +
                                      (D_LEFT + PADDING / STRIDE + D_FIRST + strip * (RUN / STRIDE)) * FILTERS;
#pragma unroll 2
            for (int k = split; k < FILTERS; k += SPLIT) {
                float weights[S][C_REGS];
#pragma unroll
                for (int j = 0; j < S; ++j)
                    load_group<C>(weights[j], filters + (i * S + j) * W_PITCH + k * C + group * C_REGS);
#pragma unroll
                for (int d = 0; d < WINDOW; ++d) {
                    const int x = PADDING / STRIDE + D_FIRST + d;  // of dout, in the first run of a row
                    if (ACROSS == 1 && (x < 0 || x >= OUT_WIDTH)) continue;
                    const float gradient = from[d * FILTERS + k];
#pragma unroll
                    for (int j = 0; j < S; ++j) {
                        const int u = (D_FIRST + d) * STRIDE + j - PHASE;
                        if (u < 0 || u >= RUN) continue;
#pragma unroll
                        for (int v = 0; v < C_REGS; ++v) sum[u][v] += gradient * weights[j][v];
                    }
                }
            }
        }
        float* const partial_row = sums + split * TO_NEXT + (row * WIDTH + strip * RUN) * C + group;
#pragma unroll
        for (int u = 0; u < RUN; ++u)
#pragma unroll
            for (int v = 0; v < C_REGS; ++v)
                if (WIDTH % RUN == 0 || strip * RUN + u < WIDTH) partial_row[u * C + v * GROUPS] = sum[u][v];
    }
    __syncthreads();
    const int numbers = min(BAND, HEIGHT - y0) * WIDTH * C;
    const size_t at = ((size_t)item * HEIGHT + y0) * WIDTH * C;
    for (int e = threadIdx.x; e < numbers; e += THREADS) {
        const size_t to = at + e - e % C + e % C % GROUPS * C_REGS + e % C / GROUPS;
        float total = 0.0f;
#pragma unroll
        for (int z = 0; z < SPLIT; ++z) total += sums[z * TO_NEXT + e];
#if ADD
        total += (float)other[to];
#elif MASK
        if (!((float)other[to] > 0.0f)) total = 0.0f;
#endif
        dimage[to] = T(total);
    }
}
