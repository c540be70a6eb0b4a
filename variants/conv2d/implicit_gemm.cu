// /// opbench
// mechanism = ["coalesced", "vectorised_access", "shared_memory_tile", "register_tile"]
// tile      = { m = "BM", n = "BN", k = "BK" }
// requires  = ["(c + 16) * h * w < 2 ** 31", "(c + 16) * r * s * (k + 4) < 2 ** 31"]
//
// [variant.implicit_gemm]
// title     = "implicit GEMM with register tiles: the image is gathered directly, filter position outermost"
// builds_on = "im2col_matmul"
// tune      = { BM = [64, 128], BN = [128, 64], BK = [16, 8] }
// supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish", "bias_hardsigmoid", "bias_add", "bias_add_relu"]
// requires  = ["cdiv(k, BM) <= 65535"]
// workspace = { packed = "c * r * s * cdiv(k, 4) * 4" }
//
// [variant.implicit_gemm.define]
// PLANE4   = "1 if p * q % 4 == 0 else 0"
// BIAS     = "0 if epilogue == 'none' else 1"
// RESIDUAL = "'add' in epilogue"
// EPILOGUE = "epilogue"
//
// [[variant.implicit_gemm.launch]]
// kernel = "conv2d_pack_weights"
// grid   = ["cdiv(k, 32) * cdiv(c * r * s, 32)"]
// block  = [32, 8]
// args   = ["weight", "packed", "k", "c * r * s", "cdiv(k, 4) * 4"]
//
// [[variant.implicit_gemm.launch]]
// kernel = "conv2d_implicit_gemm"
// grid   = ["cdiv(n * p * q, BN)", "cdiv(k, BM)"]
// block  = ["BM * BN // 64"]
// args   = [
//     "packed", "image", "bias?", "residual?", "out", "n", "c", "h", "w", "k", "s", "stride", "padding", "q", "p * q",
//     "r * s", "r * s * cdiv(c, BK)",
// ]
//
// [variant.implicit_gemm_split]
// title     = "implicit GEMM with split-K: SPLIT blocks per tile, partial sums added in fixed order"
// builds_on = "implicit_gemm"
// mechanism = ["split_k"]
// tile      = { m = "BM", n = "BN", k = "BK", split = "SPLIT" }
// tune      = { BM = [64], BN = [64, 128], BK = [8], SPLIT = [4, 8, 16, 32] }
// define    = { PLANE4 = "1 if p * q % 4 == 0 else 0" }
// workspace = { packed = "c * r * s * cdiv(k, 4) * 4", partial = "SPLIT * n * k * p * q" }
//
// [[variant.implicit_gemm_split.launch]]
// kernel = "conv2d_pack_weights"
// grid   = ["cdiv(k, 32) * cdiv(c * r * s, 32)"]
// block  = [32, 8]
// args   = ["weight", "packed", "k", "c * r * s", "cdiv(k, 4) * 4"]
//
// [[variant.implicit_gemm_split.launch]]
// kernel = "conv2d_implicit_gemm_split"
// grid   = ["cdiv(n * p * q, BN)", "cdiv(k, BM)", "SPLIT"]
// block  = ["BM * BN // 64"]
// args   = [
//     "packed", "image", "partial", "n", "c", "h", "w", "k", "s", "stride", "padding", "q", "p * q", "r * s",
//     "r * s * cdiv(c, BK)",
// ]
//
// [[variant.implicit_gemm_split.launch]]
// kernel = "conv2d_add_partials"
// grid   = ["cdiv(n * k * p * q, 256)"]
// block  = [256]
// args   = ["partial", "out", "n * k", "p * q"]
// ///
//
// The im2col matrix is never stored: each thread fetches the image elements of one output pixel (a column) while the
// tiles are filled. The outer loop goes over filter positions, the inner one over channels. So a thread's address and
// border check change once per filter position, the next element costs one addition, and the loop has no division. A
// first kernel transposes the weights (k*c*r*s moves, little work), so that they are loaded 16 bytes at a time without
// a transposing store. The next step is fetched into registers while the current one is multiplied. Limit: the
// multiply-add rate and the loads from shared memory that feed it (4 per 64); idle SMs if k * n * p * q makes few
// tiles. With c below BK part of each step is zeros. Idea: Chetlur et al., cuDNN (2014); tiling after CUTLASS,
// "implicit GEMM convolution".
//
// For one image, a deep layer has few tiles (12 x 12 pixels x 384 channels: 18 of 64 x 64, for 132 multiprocessors)
// with long sums (9 * 384 terms). In `implicit_gemm_split`, SPLIT blocks share a tile, and each computes a part of its
// depth. A last kernel adds the SPLIT partial results in index order, so the result does not depend on timing. The
// output is written and read SPLIT times, so this suits only small outputs. Limit: latency, with few steps per block.
// Idea: split-K of CUTLASS.

#include <opbench/activations.cuh>
#include <opbench/float_tile.cuh>
using namespace opbench;

#ifndef SPLIT
#define SPLIT 1
#endif

typedef SquareTiles<BM, BN> Tiles;  // 8 x 8 outputs per thread
constexpr int THREADS = Tiles::threads;
constexpr int A_PITCH = BM, B_PITCH = BN;
constexpr int A_LOADS = BM * BK / 4 / THREADS;  // float4 each
constexpr int A_ROWS = THREADS / (BM / 4);      // rows of a step that the block fetches at once
constexpr int B_ROWS = THREADS / BN;
constexpr int B_LOADS = BK / B_ROWS;

// weight [k][depth] -> packed [depth][pitch], zero beyond k: makes the loads of the main kernel contiguous and 16-byte.
extern "C" __global__ void conv2d_pack_weights(const float* __restrict__ weight, float* __restrict__ packed, int k,
                                               int depth, int pitch) {
    pack_columns(weight, packed, k, depth, pitch);
}

// plane = p * q, steps = r * s * ceil(c / BK): all that the host can compute saves registers here.
// packed [c][r][s][pitch] (output channels innermost), image [n][c][h][w], residual and out [n][k][p][q], partial
// [SPLIT][n][k][p][q]
extern "C" __global__ void __launch_bounds__(THREADS, Tiles::resident)
#if SPLIT > 1
    conv2d_implicit_gemm_split(const float* __restrict__ packed, const float* __restrict__ image,
                               float* __restrict__ partial,
#else
    conv2d_implicit_gemm(const float* __restrict__ packed, const float* __restrict__ image,
#if BIAS
                         const float* __restrict__ bias,
#endif
#if RESIDUAL
                         const float* __restrict__ residual,
#endif
                         float* __restrict__ out,
#endif
                               int n, int c, int h, int w, int k, int s, int stride, int padding, int q, unsigned plane,
                               int positions, int steps) {
    __shared__ __align__(16) float a_tile[2][BK][A_PITCH];
    __shared__ __align__(16) float b_tile[2][BK][B_PITCH];
    const long long columns = (long long)n * plane;
    const int pitch = (k + 3) / 4 * 4;
    const int row0 = blockIdx.y * BM;
    const long long column0 = (long long)blockIdx.x * BN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m_thread = warp / Tiles::warps_n * 32 + lane / Tiles::lanes_n * 4;
    const int n_thread = warp % Tiles::warps_n * 64 + lane % Tiles::lanes_n * 4;

    // This thread always fetches for the same pixel, every B_ROWS-th channel. Of the weights it fetches four neighbours
    // of every A_ROWS-th channel. Offsets fit 32 bits within one image (see `requires`), which saves registers and
    // additions.
    const int b_column = threadIdx.x % BN, b_row = threadIdx.x / BN;
    const int a_column = threadIdx.x % (BM / 4) * 4, a_row = threadIdx.x / (BM / 4);
    const int hw = h * w, weight_stride = positions * pitch;  // from one channel to the next
    const float* source = image;
    int y0 = -(1 << 30), x0 = 0;  // a pixel beyond the end lies in a row that no image has
    if (column0 + b_column < columns) {
        const unsigned pixel = (unsigned)((column0 + b_column) % plane);
        y0 = (int)(pixel / q) * stride - padding;
        x0 = (int)(pixel % q) * stride - padding;
        source += (column0 + b_column) / plane * c * hw;
    }
    const bool a_inside = row0 + a_column < pitch;

#if SPLIT > 1
    // This block's part of the depth. If the part is empty, the block contributes zeros.
    const int blocks_c = (c + BK - 1) / BK;
    const int steps_per_part = (steps + SPLIT - 1) / SPLIT;
    const int first = blockIdx.z * steps_per_part;
    const int last = min(first + steps_per_part, steps);
    float* out = partial + (size_t)blockIdx.z * k * columns;
    int position = first / blocks_c, c0 = first % blocks_c * BK;  // filter position and first channel to be fetched
#else
    int position = 0, c0 = 0;  // filter position and first channel of the step to be fetched
#endif
    int a_offset = 0, b_offset = 0;
    bool inside = false;
    auto update_offsets = [&] {
        const int y = y0 + position / s, x = x0 + position % s;
        inside = (unsigned)y < (unsigned)h && (unsigned)x < (unsigned)w;
        b_offset = (c0 + b_row) * hw + (inside ? y * w + x : 0);
        a_offset = (c0 + a_row) * weight_stride + position * pitch + row0 + a_column;
    };
    float4 a_next[A_LOADS];
    float b_next[B_LOADS];
    auto load = [&](int) {
        const int left = c - c0;
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l)
            a_next[l] = a_inside && a_row + l * A_ROWS < left
                            ? *reinterpret_cast<const float4*>(packed + (a_offset + l * A_ROWS * weight_stride))
                            : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l)
            b_next[l] = inside && b_row + l * B_ROWS < left ? source[b_offset + l * B_ROWS * hw] : 0.0f;
        c0 += BK;
        a_offset += BK * weight_stride;
        b_offset += BK * hw;
        if (c0 < c) return;
        c0 = 0;
        ++position;
        update_offsets();
    };
    auto store = [&](int buffer) {
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l)
            *reinterpret_cast<float4*>(&a_tile[buffer][a_row + l * A_ROWS][a_column]) = a_next[l];
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l) b_tile[buffer][b_row + l * B_ROWS][b_column] = b_next[l];
    };

    float sum[8][8] = {};
    update_offsets();
#if SPLIT > 1
    if (first < last) load(first);
    if (first < last) store(0);
    __syncthreads();
    for (int step = first; step < last; ++step) {
        // Fetch the next step into registers, multiply the current step meanwhile, then store the next one to the other
        // buffer.
        const int buffer = (step - first) % 2;
        if (step + 1 < last) load(step + 1);
        multiply_squares<Tiles::lanes_m, Tiles::lanes_n>(a_tile[buffer], b_tile[buffer], m_thread, n_thread, sum);
        if (step + 1 < last) store(buffer ^ 1);
        __syncthreads();
    }
#else
    multiply_steps<Tiles>(a_tile, b_tile, m_thread, n_thread, steps, sum, load, store);
#endif
#if BIAS
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int channel = row0 + m_thread + i % 4 + i / 4 * 4 * Tiles::lanes_m;
        const float shift = channel < k ? bias[channel] : 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            sum[i][j] += shift;
#if RESIDUAL
            const long long column = column0 + n_thread + j % 4 + j / 4 * 4 * Tiles::lanes_n;
            if (channel < k && column < columns)
                sum[i][j] += residual[((size_t)(column / plane) * k + channel) * plane + column % plane];
#endif
            sum[i][j] = apply_activation<activation_of::EPILOGUE>(sum[i][j]);
        }
    }
#endif
    store_planes<Tiles::lanes_m, Tiles::lanes_n, PLANE4>(sum, out, row0, m_thread, column0 + n_thread, k, plane,
                                                         columns);
}

#if SPLIT > 1
// partial [SPLIT][planes][plane], out [planes][plane]
extern "C" __global__ void conv2d_add_partials(const float* __restrict__ partial, float* __restrict__ out, int planes,
                                               int plane) {
    const size_t total = (size_t)planes * plane;
    const size_t index = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (index >= total) return;
    float sum = 0.0f;
#pragma unroll
    for (int z = 0; z < SPLIT; ++z) sum += partial[z * total + index];
    out[index] = sum;
}
#endif
