// /// opbench
// title     = "implicit GEMM with split-K: pixels split over SPLIT blocks, partial sums added in fixed order"
// builds_on = "block_tree"
// mechanism = ["coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "split_k"]
// tile      = { m = "BM", n = "BN", k = "BK", split = "SPLIT" }
// supports  = { layout = ["nchw", "nhwc"], bias = ["no", "yes"], dtype = ["f32", "bf16"] }
// tune      = { BM = [64, 128], BN = [64, 128], BK = [8, 16], SPLIT = [16, 64, 256, 4] }
// where     = ["BM == BN and BK == (16 if BM == 64 else 8)"]
// workspace = { partial = "SPLIT * k * (c * r * s + BIAS)" }
// requires  = [
//     "n * c * h * w < 2 ** 31", "n * k * p * q < 2 ** 31", "SPLIT * k * (c * r * s + 1) <= 2 ** 28",
//     "SPLIT * cdiv(n * p * q, BK) < 2 ** 31",
// ]
//
// [define]
// NHWC = "layout == 'nhwc'"
// BF16 = "dtype == 'bf16'"
// BIAS = "1 if bias == 'yes' else 0"
//
// [[launch]]
// kernel = "conv2d_wgrad_partial"
// grid   = ["cdiv(k, BM) * cdiv(c * r * s + BIAS, BN)", "SPLIT"]
// block  = ["BM * BN // 64"]
// args   = ["image", "dout", "partial", "n", "c", "h", "w", "k", "r", "s", "stride", "padding", "p", "q"]
//
// [[launch]]
// kernel = "conv2d_wgrad_add_partial"
// grid   = ["cdiv(k * (c * r * s + BIAS), 256)"]
// block  = [256]
// args   = ["partial", "dweight", "dbias?", "k", "c * r * s"]
// ///
//
// The gradient is a matrix product: rows are output channels, columns are the weights of a filter in their stored
// order, and the depth is all pixels of the batch. The second operand is the image in im2col order, which is never
// stored. A step of BK pixels is loaded into registers while the previous step is multiplied; 16 elements from shared
// memory are enough for 64 multiply-adds. A table contains what all loads of a pixel need, so that each load costs two
// additions and a check of the border. A layer has few weights and very many pixels, so SPLIT blocks divide a tile's
// depth, and a second kernel adds their sums in index order. SPLIT does not depend on the GPU, so the bits are the same
// on every GPU. A last column of ones yields the gradient of the bias. Neighbouring threads read neighbouring pixels in
// nchw and neighbouring channels in nhwc. Limit: the multiply-adds, and loads of single elements.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int THREADS = (BM / 8) * (BN / 8);
constexpr int LANES_M = 4, LANES_N = 8;  // a warp covers 32 rows and 64 columns, 8 x 8 per thread
constexpr int WARPS_N = BN / 64;
constexpr int A_PITCH = BM + 4, B_PITCH = BN + 4;
constexpr int A_LOADS = BM * BK / THREADS, B_LOADS = BN * BK / THREADS;

// A pixel of dout, as all loads of a step use it.
struct __align__(16) Pixel {
    // positions of its window in image and of itself in dout, without channel; dout < 0: no such pixel
    int image, dout;
    int y, x;  // first row and column of its window
};

// A column of the result: a channel and a filter position. i < 0: the column of ones, or a column after the last one.
struct Column {
    int offset, i, j;
    float otherwise;
};

// The pixel of a step, and the row or column of a tile, of each load of a thread: consecutive threads load elements
// that are consecutive in memory.
__device__ __forceinline__ int depth_of(int l, int width) {
    return NHWC ? threadIdx.x / width + l * (THREADS / width) : threadIdx.x % BK;
}
__device__ __forceinline__ int place_of(int l, int width) {
    return NHWC ? threadIdx.x % width : threadIdx.x / BK + l * (THREADS / BK);
}

// image [n][c][h][w], dout [n][k][p][q] (nhwc: channels innermost), partial [SPLIT][k][c * r * s + BIAS]
extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_wgrad_partial(const T* __restrict__ image, const T* __restrict__ dout, float* __restrict__ partial, int n,
                         int c, int h, int w, int k, int r, int s, int stride, int padding, int p, int q) {
    __shared__ __align__(16) float a_tile[2][BK][A_PITCH];
    __shared__ __align__(16) float b_tile[2][BK][B_PITCH];
    __shared__ Pixel table[2][BK];
    const int columns = c * r * s + BIAS, plane = p * q, pixels = n * plane;
    const int tiles_n = (columns + BN - 1) / BN;
    const int row0 = blockIdx.x / tiles_n * BM, column0 = blockIdx.x % tiles_n * BN;
    const int all = (pixels + BK - 1) / BK;
    const int first = all * (int)blockIdx.y / SPLIT, steps = all * (int)(blockIdx.y + 1) / SPLIT - first;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m_thread = warp / WARPS_N * 32 + lane / LANES_N * 4;
    const int n_thread = warp % WARPS_N * 64 + lane % LANES_N * 4;

    constexpr int OWN = NHWC ? 1 : B_LOADS;  // columns that a thread fetches
    Column thread_columns[OWN];
#pragma unroll
    for (int l = 0; l < OWN; ++l) {
        const int column = column0 + place_of(l, BN);
        const int j = NHWC ? column / c % s : column % s, i = NHWC ? column / c / s : column / s % r;
        const int channel = NHWC ? column % c : column / s / r;
        thread_columns[l] = {NHWC ? (i * w + j) * c + channel : (channel * h + i) * w + j, i, j, 0.0f};
        if (column >= c * r * s) thread_columns[l] = {0, -1, 0, column < columns ? 1.0f : 0.0f};
    }
    auto look_up = [&](int step) {
        if (threadIdx.x >= BK) return;
        const int at = (first + step) * BK + threadIdx.x, item = at / plane, pixel = at % plane;
        const int y = pixel / q * stride - padding, x = pixel % q * stride - padding;
        Pixel entry = {0, -1, 0, 0};
        if (at < pixels) {
            entry.image = NHWC ? ((item * h + y) * w + x) * c : item * c * h * w + y * w + x;
            entry.dout = NHWC ? at * k : item * k * plane + pixel;
            entry.y = y, entry.x = x;
        }
        table[step % 2][threadIdx.x] = entry;
    };
    float a_next[A_LOADS], b_next[B_LOADS];
    auto load = [&](int step) {
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l) {
            const Pixel& pixel = table[step % 2][depth_of(l, BM)];
            const int output = row0 + place_of(l, BM);
            a_next[l] = pixel.dout >= 0 && output < k ? (float)dout[pixel.dout + output * (NHWC ? 1 : plane)] : 0.0f;
        }
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l) {
            const Pixel pixel = table[step % 2][depth_of(l, BN)];
            const Column& column = thread_columns[NHWC ? 0 : l];
            const bool inside = column.i >= 0 && pixel.dout >= 0 && (unsigned)(pixel.y + column.i) < (unsigned)h &&
                                (unsigned)(pixel.x + column.j) < (unsigned)w;
            b_next[l] = inside ? (float)image[pixel.image + column.offset] : column.otherwise;
        }
    };
    auto store = [&](int buffer) {
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l) a_tile[buffer][depth_of(l, BM)][place_of(l, BM)] = a_next[l];
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l) b_tile[buffer][depth_of(l, BN)][place_of(l, BN)] = b_next[l];
    };

    float sum[8][8] = {};
    look_up(0);
    __syncthreads();
    if (steps > 0) load(0);
    store(0);
    look_up(1);
    __syncthreads();
    for (int step = 0; step < steps; ++step) {
        // Fetch the next step into registers, multiply the current step meanwhile, then store the next one to the other
        // buffer.
        const bool more = step + 1 < steps;
        if (more) load(step + 1), look_up(step + 2);
        const float (*a)[A_PITCH] = a_tile[step % 2];
        const float (*b)[B_PITCH] = b_tile[step % 2];
#pragma unroll
        for (int d = 0; d < BK; ++d) {
            const float4 a0 = *reinterpret_cast<const float4*>(&a[d][m_thread]);
            const float4 a1 = *reinterpret_cast<const float4*>(&a[d][m_thread + 4 * LANES_M]);
            const float4 b0 = *reinterpret_cast<const float4*>(&b[d][n_thread]);
            const float4 b1 = *reinterpret_cast<const float4*>(&b[d][n_thread + 4 * LANES_N]);
            const float x[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};
            const float y[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) sum[i][j] += x[i] * y[j];
        }
        if (more) store((step + 1) % 2);
        __syncthreads();
    }
    float* block_part = partial + (size_t)blockIdx.y * k * columns;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int row = row0 + m_thread + i % 4 + i / 4 * 4 * LANES_M;
        if (row >= k) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int column = column0 + n_thread + half * 4 * LANES_N;
            float* to = block_part + (size_t)row * columns + column;
            const float* v = &sum[i][half * 4];
            if (columns % 4 == 0) {
                if (column < columns) *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
            } else {
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (column + j < columns) to[j] = v[j];
            }
        }
    }
}

// partial [SPLIT][k][weights + BIAS], dweight [k][weights], dbias [k]
extern "C" __global__ void __launch_bounds__(256)
    conv2d_wgrad_add_partial(const float* __restrict__ partial, float* __restrict__ dweight,
#if BIAS
                             float* __restrict__ dbias,
#endif
                             int k, int weights) {
    const int columns = weights + BIAS, total = k * columns, index = blockIdx.x * 256 + threadIdx.x;
    if (index >= total) return;
    float sum = 0.0f;
#pragma unroll 4
    for (int z = 0; z < SPLIT; ++z) sum += partial[(size_t)z * total + index];
    const int row = index / columns, column = index % columns;
    if (column < weights) dweight[(size_t)row * weights + column] = sum;
#if BIAS
    if (column == weights) dbias[row] = sum;
#endif
}
