// /// opbench
// title     = "im2col into a workspace, then one register-tiled matrix product over all images"
// builds_on = "multi_channel_out"
// mechanism = ["coalesced", "vectorised_access", "shared_memory_tile", "register_tile"]
// tile      = { m = "BM", n = "BN", k = "BK" }
// tune      = { BM = [64, 128], BN = [128, 64], BK = [8] }
// define    = { PLANE4 = "1 if p * q % 4 == 0 else 0" }
// workspace = { columns = "c * r * s * n * p * q" }
//
// [[launch]]
// kernel = "conv2d_im2col"
// grid   = ["cdiv(n * p * q, 256)", "min(c, 65535)"]
// block  = [256]
// args   = ["image", "columns", "n", "c", "h", "w", "r", "s", "stride", "padding"]
//
// [[launch]]
// kernel = "conv2d_columns_matmul"
// grid   = ["cdiv(k, BM) * cdiv(n * p * q, BN)"]
// block  = ["BM * BN // 64"]
// args   = ["weight", "columns", "out", "k", "c * r * s", "n", "p * q"]
// ///
//
// Turns the convolution into [k][c*r*s] x [c*r*s][n*p*q], where 8 x 8 outputs per thread need 4 shared loads per 64
// multiply-adds. All images form one matrix, so small planes still fill the tiles. The price is r*s times the image
// written and read again, and as much memory; for few output channels that traffic limits it. Idea: Chellapilla, Puri,
// Simard, High Performance Convolutional Neural Networks (2006), and Caffe.

#include <opbench/float_tile.cuh>
using namespace opbench;

constexpr int THREADS = (BM / 8) * (BN / 8);
constexpr int LANES_M = 4, LANES_N = 8;  // a warp covers 32 rows and 64 columns, 8 x 8 per thread
constexpr int WARPS_N = BN / 64;
constexpr int A_PITCH = BM + 4, B_PITCH = BN;
constexpr int A_LOADS = BM * BK / THREADS;
constexpr int B_LOADS = BN * BK / 4 / THREADS;  // float4 each

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

// weight [k][depth], matrix [depth][n * plane], out [n][k][plane]
extern "C" __global__ void __launch_bounds__(THREADS, THREADS == 256 ? 2 : 384 / THREADS)
    conv2d_columns_matmul(const float* __restrict__ weight, const float* __restrict__ matrix, float* __restrict__ out,
                          int k, int depth, int n, int plane) {
    __shared__ __align__(16) float a_tile[2][BK][A_PITCH];
    __shared__ __align__(16) float b_tile[2][BK][B_PITCH];
    const long long columns = (long long)n * plane;
    // Blocks that share columns run next to each other, so that the matrix comes from memory once.
    const int tiles_m = (k + BM - 1) / BM;
    const int row0 = blockIdx.x % tiles_m * BM;
    const long long column0 = (long long)(blockIdx.x / tiles_m) * BN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m_thread = warp / WARPS_N * 32 + lane / LANES_N * 4;
    const int n_thread = warp % WARPS_N * 64 + lane % LANES_N * 4;

    // The left matrix is read along depth and stored transposed; 4 floats of padding keep those stores conflict-free.
    const int a_kk = threadIdx.x % BK, a_row = threadIdx.x / BK;
    float a_next[A_LOADS];
    float4 b_next[B_LOADS];
    auto load = [&](int step) {
        const int depth0 = step * BK;
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l) {
            const int ko = row0 + a_row + l * (THREADS / BK);
            a_next[l] = ko < k && depth0 + a_kk < depth ? weight[(size_t)ko * depth + depth0 + a_kk] : 0.0f;
        }
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l) {
            const int e = threadIdx.x + l * THREADS;
            const int d = depth0 + e / (BN / 4);
            const long long column = column0 + e % (BN / 4) * 4;
            float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (d < depth) {
                const float* source = matrix + (size_t)d * columns + column;
                if (PLANE4) {
                    if (column < columns) v = *reinterpret_cast<const float4*>(source);
                } else {
                    if (column < columns) v.x = source[0];
                    if (column + 1 < columns) v.y = source[1];
                    if (column + 2 < columns) v.z = source[2];
                    if (column + 3 < columns) v.w = source[3];
                }
            }
            b_next[l] = v;
        }
    };
    auto store = [&](int buffer) {
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l) a_tile[buffer][a_kk][a_row + l * (THREADS / BK)] = a_next[l];
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l) {
            const int e = threadIdx.x + l * THREADS;
            *reinterpret_cast<float4*>(&b_tile[buffer][e / (BN / 4)][e % (BN / 4) * 4]) = b_next[l];
        }
    };

    float sum[8][8] = {};
    const int steps = (depth + BK - 1) / BK;
    load(0);
    store(0);
    __syncthreads();
    for (int step = 0; step < steps; ++step) {
        // Fetch the next step into registers, multiply this one meanwhile, then fill the other buffer.
        if (step + 1 < steps) load(step + 1);
        multiply_squares<LANES_M, LANES_N>(a_tile[step % 2], b_tile[step % 2], m_thread, n_thread, sum);
        if (step + 1 < steps) store((step + 1) % 2);
        __syncthreads();
    }
    store_planes<LANES_M, LANES_N, PLANE4>(sum, out, row0, m_thread, column0 + n_thread, k, plane, columns);
}
