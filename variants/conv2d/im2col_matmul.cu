// /// opbench
// mechanism = ["coalesced", "vectorised_access", "shared_memory_tile", "register_tile"]
// tile      = { m = "BM", n = "BN", k = "BK" }
//
// [variant.im2col_matmul]
// title     = "im2col into a workspace, then one register-tiled GEMM over all images"
// builds_on = "multi_channel_out"
// tune      = { BM = [64, 128], BN = [128, 64], BK = [8] }
// define    = { PLANE4 = "1 if p * q % 4 == 0 else 0", POINTWISE = "0" }
// workspace = { columns = "c * r * s * n * p * q" }
//
// [[variant.im2col_matmul.launch]]
// kernel = "conv2d_im2col"
// grid   = ["cdiv(n * p * q, 256)", "min(c, 65535)"]
// block  = [256]
// args   = ["image", "columns", "n", "c", "h", "w", "r", "s", "stride", "padding"]
//
// [[variant.im2col_matmul.launch]]
// kernel = "conv2d_columns_matmul"
// grid   = ["cdiv(k, BM) * cdiv(n * p * q, BN)"]
// block  = ["BM * BN // 64"]
// args   = ["weight", "columns", "out", "k", "c * r * s", "n", "p * q"]
//
// [variant.pointwise_gemm]
// title     = "1x1 filters as a register-tiled GEMM that reads the image directly"
// builds_on = "im2col_matmul"
// tune      = { BM = [64, 32, 128], BN = [128, 64], BK = [8] }
// define    = { PLANE4 = "1 if h * w % 4 == 0 else 0", POINTWISE = "1" }
// requires  = ["r == 1 and s == 1", "stride == 1", "padding == 0"]
//
// [[variant.pointwise_gemm.launch]]
// kernel = "conv2d_pointwise_gemm"
// grid   = ["cdiv(k, BM) * cdiv(n * h * w, BN)"]
// block  = ["BM * BN // 64"]
// args   = ["weight", "image", "out", "k", "c", "n", "h * w"]
// ///
//
// Turns the convolution into the matrix product [k][c*r*s] x [c*r*s][n*p*q], in which a thread computes 8 x 8 outputs:
// 4 loads of 16 bytes from shared memory serve 64 multiply-adds. All images form one matrix, so small planes still fill
// the tiles. The cost is a workspace of r*s times the image, which is written and read again; for few output channels
// this traffic is the limit. Idea: Chellapilla, Puri, Simard, High Performance Convolutional Neural Networks (2006),
// and Caffe.
//
// For a 1x1 filter, the im2col matrix is the image itself. So `pointwise_gemm` rearranges nothing: it computes [k][c] x
// [c][h*w] per image, with the pixels of all images as columns, and loads 16 bytes at a time if h*w is a multiple of 4.
// Limit: memory for few output channels, otherwise the multiply-add rate.

#include <opbench/float_tile.cuh>
using namespace opbench;

typedef SquareTiles<BM, BN> Tiles;  // 8 x 8 outputs per thread
constexpr int THREADS = Tiles::threads;
constexpr int A_PITCH = BM + 4, B_PITCH = BN;
constexpr int B_LOADS = BN * BK / 4 / THREADS;  // float4 each

#if !POINTWISE
// image [n][c][h][w] -> columns [c][r][s][n][p][q]
extern "C" __global__ void conv2d_im2col(const float* __restrict__ image, float* __restrict__ columns, int n, int c,
                                         int h, int w, int r, int s, int stride, int padding) {
    const int q = (w + 2 * padding - s) / stride + 1;
    const unsigned plane = (unsigned)((h + 2 * padding - r) / stride + 1) * q;
    const size_t total = (size_t)n * plane;
    const size_t column = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (column >= total) return;
    const size_t ni = column / plane;
    const unsigned pixel = (unsigned)(column % plane);
    const int y0 = (int)(pixel / q) * stride - padding, x0 = (int)(pixel % q) * stride - padding;
    for (int ci = blockIdx.y; ci < c; ci += gridDim.y) {
        const float* channel = image + (ni * c + ci) * h * w;
        float* target = columns + (size_t)ci * r * s * total + column;
        for (int i = 0; i < r; ++i) {
            for (int j = 0; j < s; ++j) {
                const int y = y0 + i, x = x0 + j;
                const bool inside = (unsigned)y < (unsigned)h && (unsigned)x < (unsigned)w;
                *target = inside ? channel[(size_t)y * w + x] : 0.0f;
                target += total;
            }
        }
    }
}
#endif

// weight [k][depth], matrix [depth][n * plane], or with POINTWISE the image [n][depth][plane]; out [n][k][plane]
extern "C" __global__ void __launch_bounds__(THREADS, Tiles::resident)
#if POINTWISE
    conv2d_pointwise_gemm(
#else
    conv2d_columns_matmul(
#endif
        const float* __restrict__ weight, const float* __restrict__ matrix, float* __restrict__ out, int k, int depth,
        int n, int plane) {
    __shared__ __align__(16) float a_tile[2][BK][A_PITCH];
    __shared__ __align__(16) float b_tile[2][BK][B_PITCH];
    const long long columns = (long long)n * plane;
    // Blocks that share columns have neighbouring indices, so they run together and read the matrix from DRAM once.
    const int tiles_m = (k + BM - 1) / BM;
    const int row0 = blockIdx.x % tiles_m * BM;
    const long long column0 = (long long)(blockIdx.x / tiles_m) * BN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m_thread = warp / Tiles::warps_n * 32 + lane / Tiles::lanes_n * 4;
    const int n_thread = warp % Tiles::warps_n * 64 + lane % Tiles::lanes_n * 4;

#if POINTWISE
    // The offsets of this thread's columns in the image do not depend on the step; -1 marks a column after the last
    // one.
    constexpr int POINTS = PLANE4 ? 1 : 4;
    long long offset[POINTS];
#pragma unroll
    for (int o = 0; o < POINTS; ++o) {
        const long long column = column0 + threadIdx.x % (BN / 4) * 4 + o;
        offset[o] = column < columns ? column / plane * depth * plane + column % plane : -1;
    }
#endif
    TransposedRows<THREADS, BM, BK> a_next;
    float4 b_next[B_LOADS];
    auto load = [&](int step) {
        const int depth0 = step * BK;
        a_next.load(weight, row0, k, depth0, depth);
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l) {
            const int e = threadIdx.x + l * THREADS;
            const int d = depth0 + e / (BN / 4);
#if !POINTWISE
            const long long column = column0 + e % (BN / 4) * 4;
#endif
            float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (d < depth) {
#if POINTWISE
                const float* source = matrix + (size_t)d * plane;
#if PLANE4
                if (offset[0] >= 0) v = *reinterpret_cast<const float4*>(source + offset[0]);
#else
                if (offset[0] >= 0) v.x = source[offset[0]];
                if (offset[1] >= 0) v.y = source[offset[1]];
                if (offset[2] >= 0) v.z = source[offset[2]];
                if (offset[3] >= 0) v.w = source[offset[3]];
#endif
#else
                const float* source = matrix + (size_t)d * columns + column;
                if (PLANE4) {
                    if (column < columns) v = *reinterpret_cast<const float4*>(source);
                } else {
                    if (column < columns) v.x = source[0];
                    if (column + 1 < columns) v.y = source[1];
                    if (column + 2 < columns) v.z = source[2];
                    if (column + 3 < columns) v.w = source[3];
                }
#endif
            }
            b_next[l] = v;
        }
    };
    auto store = [&](int buffer) {
        a_next.store(a_tile[buffer]);
        store_quads<THREADS>(b_tile[buffer], b_next);
    };

    float sum[8][8] = {};
    const int steps = (depth + BK - 1) / BK;
    multiply_steps<Tiles>(a_tile, b_tile, m_thread, n_thread, steps, sum, load, store);
    store_planes<Tiles::lanes_m, Tiles::lanes_n, PLANE4>(sum, out, row0, m_thread, column0 + n_thread, k, plane,
                                                         columns);
}
