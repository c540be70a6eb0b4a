// /// opbench
// title     = "nhwc, small layers: filters and image rows in shared memory, one output per thread"
// builds_on = "nhwc_direct"
// mechanism = ["coalesced", "shared_memory_tile", "compile_time_sizes", "overlapped_launch"]
// tune      = { CHANNELS = [16, 32], COLUMNS = [8, 16] }
// supports.layout   = ["nhwc"]
// supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish", "bias_hardsigmoid", "bias_add", "bias_add_relu"]
// supports.dtype    = ["f32", "bf16"]
// requires  = [
//     "n * p * cdiv(q, COLUMNS) < 2 ** 31", "cdiv(k, CHANNELS) < 65536", "s * c <= 1024",
//     "4 * (CHANNELS * (c * r * s + 1 - c * r * s % 2) + r * ((COLUMNS - 1) * stride + s) * c) <= 200 * 1024",
// ]
//
// [define]
// C      = "c"
// R      = "r"
// S      = "s"
// STRIDE = "stride"
// BF16   = "1 if dtype == 'bf16' else 0"
// BIAS     = "epilogue != 'none'"
// RESIDUAL = "'add' in epilogue"
// EPILOGUE = "epilogue"
//
// [[launch]]
// kernel = "conv2d_nhwc_filters_shared"
// grid   = ["n * p * cdiv(q, COLUMNS)", "cdiv(k, CHANNELS)"]
// block  = ["CHANNELS", "COLUMNS"]
// programmatic = true
// early  = ["weight"]
// shared = "4 * (CHANNELS * (c * r * s + 1 - c * r * s % 2) + r * ((COLUMNS - 1) * stride + s) * c)"
// ///
//
// For a layer of some thousand outputs, each a sum of 150 products, only latency counts: nhwc_direct waits for a load
// in each step. Here a block first copies all image rows and filters that it needs to shared memory, with coalesced
// loads, and then computes from shared memory. In a row of a window all channels are contiguous. So a step is one load
// of the image, which all threads of a pixel share, one load of the filters, whose odd pitch puts channels into
// different banks, and a multiply-add. Limit: the launch, one wait for memory, and two loads from shared memory per
// multiply-add.

#include <opbench/activations.cuh>
#include <opbench/overlap.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;

constexpr int DEPTH = R * S * C, PITCH = DEPTH + 1 - DEPTH % 2;
constexpr int WIDTH = ((COLUMNS - 1) * STRIDE + S) * C;  // of the image rows that a block needs, in elements
constexpr int THREADS = CHANNELS * COLUMNS;

// image [n][h][w][C], weight [k][R][S][C], bias [k], residual and out [n][p][q][k]
// filters [CHANNELS][PITCH], rows [R][WIDTH]
extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_nhwc_filters_shared(const T* image, const T* __restrict__ weight,
#if BIAS
                               const T* __restrict__ bias,
#endif
#if RESIDUAL
                               const T* residual,
#endif
                               T* __restrict__ out, int n, int c, int h, int w, int k, int r, int s, int stride,
                               int padding) {
    extern __shared__ float filters[];
    float* rows = filters + CHANNELS * PITCH;
    const int p = (h + 2 * padding - R) / STRIDE + 1, q = (w + 2 * padding - S) / STRIDE + 1;
    const int tiles_q = (q + COLUMNS - 1) / COLUMNS;
    const int q0 = (int)(blockIdx.x % tiles_q) * COLUMNS, yo = (int)(blockIdx.x / tiles_q % p);
    const int ni = (int)(blockIdx.x / tiles_q / p), k0 = (int)blockIdx.y * CHANNELS;
    const int thread = threadIdx.y * CHANNELS + threadIdx.x, x0 = q0 * STRIDE - padding;

    let_next_launch_start();
    const T* const first_filter = weight + (size_t)k0 * DEPTH;
#pragma unroll 8
    for (int e = thread; e < CHANNELS * DEPTH; e += THREADS)
        filters[e / DEPTH * PITCH + e % DEPTH] = k0 + e / DEPTH < k ? (float)first_filter[e] : 0.0f;
    wait_for_launches_before();
#pragma unroll 4
    for (int e = thread; e < R * WIDTH; e += THREADS) {
        const int y = yo * STRIDE - padding + e / WIDTH, x = x0 + e % WIDTH / C;
        const bool inside = (unsigned)y < (unsigned)h && (unsigned)x < (unsigned)w;
        rows[e] = inside ? (float)image[(((size_t)ni * h + y) * w + x) * C + e % WIDTH % C] : 0.0f;
    }
    __syncthreads();

    const int ko = k0 + threadIdx.x, xo = q0 + threadIdx.y;
    const float* filter = filters + threadIdx.x * PITCH;
    const float* window = rows + threadIdx.y * STRIDE * C;
    float sum[2] = {};  // two, so that an addition need not wait for the one before
#pragma unroll 1
    for (int i = 0; i < R; ++i) {
#pragma unroll 16
        for (int e = 0; e < S * C; ++e) sum[e % 2] += window[i * WIDTH + e] * filter[i * S * C + e];
    }
    float total = sum[0] + sum[1];
    if (ko >= k || xo >= q) return;
#if BIAS
    total += (float)bias[ko];
#endif
    const size_t at = (((size_t)ni * p + yo) * q + xo) * k + ko;
#if RESIDUAL
    total += (float)residual[at];
#endif
    out[at] = T(apply_activation<activation_of::EPILOGUE>(total));
}
