// /// opbench
// title     = "implicit GEMM on nhwc: register tiles, 16-byte loads of channels"
// builds_on = "nhwc_direct"
// mechanism = ["coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free"]
// tile      = { m = "BM", n = "BN", k = "BK" }
// tune      = { BM = [128, 64], BN = [64, 128], BK = [16, 8] }
// define    = { C4 = "1 if c % 4 == 0 else 0" }
// where     = ["BK == 8 or BM * BN == 64 * 128"]      # the others would spill registers
// supports  = { layout = ["nhwc"] }
// requires  = ["c * h * w + 64 < 2 ** 31", "(c * r * s + 32) * (k + 4) < 2 ** 31", "cdiv(k, BN) <= 65535"]
// workspace = { packed = "c * r * s * cdiv(k, 4) * 4" }
//
// [[launch]]
// kernel = "conv2d_pack_weights"
// grid   = ["cdiv(k, 32) * cdiv(c * r * s, 32)"]
// block  = [32, 8]
// args   = ["weight", "packed", "k", "c * r * s", "cdiv(k, 4) * 4"]
//
// [[launch]]
// kernel = "conv2d_nhwc_implicit_gemm"
// grid   = ["cdiv(n * p * q, BM)", "cdiv(k, BN)"]
// block  = ["BM * BN // 64"]
// args   = [
//     "packed", "image", "out", "n", "c", "h", "w", "k", "s", "stride", "padding", "q", "p * q", "r * s * cdiv(c, BK)",
// ]
// ///
//
// Rows are output pixels, columns output channels; the depth is filter position times channel. In nhwc the channels of
// a pixel are contiguous, so an image load is 16 bytes (scalar if c is not a multiple of 4), and one address and one
// border check serve a whole filter position. The store into shared memory transposes; a padding of 4 floats avoids
// bank conflicts at BK=8. Limit: the multiply-add rate. Idea: CUTLASS, "implicit GEMM convolution".

#include <opbench/float_tile.cuh>
using namespace opbench;

typedef SquareTiles<BM, BN> Tiles;  // 8 x 8 outputs per thread
constexpr int THREADS = Tiles::threads;
constexpr int A_PITCH = BM + 4, B_PITCH = BN;
constexpr int QUADS = BK / 4;                  // float4 per pixel and step
constexpr int A_LOADS = BM * QUADS / THREADS;  // float4 each
constexpr int B_ROWS = THREADS / (BN / 4);     // rows of a step that the block fetches at once
constexpr int B_LOADS = BK / B_ROWS;           // float4 each

// weight [k][depth] -> packed [depth][pitch], with zeros after filter k: so the loads of the main kernel are contiguous
// and 16 bytes.
extern "C" __global__ void conv2d_pack_weights(const float* __restrict__ weight, float* __restrict__ packed, int k,
                                               int depth, int pitch) {
    pack_columns(weight, packed, k, depth, pitch);
}

// plane = p * q, steps = r * s * ceil(c / BK): computed on the host, which saves registers here.
// packed [r][s][c][pitch] (output channels innermost), image [n][h][w][c], out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(THREADS, Tiles::resident)
    conv2d_nhwc_implicit_gemm(const float* __restrict__ packed, const float* __restrict__ image,
                              float* __restrict__ out, int n, int c, int h, int w, int k, int s, int stride,
                              int padding, int q, unsigned plane, int steps) {
    __shared__ __align__(16) float a_tile[2][BK][A_PITCH];
    __shared__ __align__(16) float b_tile[2][BK][B_PITCH];
    const long long pixels = (long long)n * plane;
    const int pitch = (k + 3) / 4 * 4;
    const int column0 = blockIdx.y * BN;
    const long long row0 = (long long)blockIdx.x * BM;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m_thread = warp / Tiles::warps_n * 32 + lane / Tiles::lanes_n * 4;
    const int n_thread = warp % Tiles::warps_n * 64 + lane % Tiles::lanes_n * 4;

    // This thread loads the same four channels of A_LOADS pixels in each step, and four output channels of every
    // B_ROWS-th channel. Offsets fit in 32 bits within one image (see `requires`), which saves registers and additions.
    const int quad = threadIdx.x % QUADS * 4, a_row = threadIdx.x / QUADS;
    const int b_column = threadIdx.x % (BN / 4) * 4, b_row = threadIdx.x / (BN / 4);
    const float* source[A_LOADS];  // the thread's channels of pixel (0, 0) of the image
    int y0[A_LOADS], x0[A_LOADS];
#pragma unroll
    for (int l = 0; l < A_LOADS; ++l) {
        const long long row = row0 + a_row + l * (THREADS / QUADS);
        source[l] = image;
        y0[l] = -(1 << 30), x0[l] = 0;  // a pixel after the last one gets a row that is outside of every image
        if (row >= pixels) continue;
        const unsigned pixel = (unsigned)(row % plane);
        y0[l] = (int)(pixel / q) * stride - padding;
        x0[l] = (int)(pixel % q) * stride - padding;
        source[l] += row / plane * (h * w * c);
    }
    const bool b_inside = column0 + b_column < pitch;

    int position = 0, c0 = 0;  // filter position and first channel of the next step to load
    int a_offset[A_LOADS], b_offset;
    bool inside[A_LOADS];
    auto update_offsets = [&] {
        const int i = position / s, j = position % s;
        b_offset = (position * c + b_row) * pitch + column0 + b_column;
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l) {
            const int y = y0[l] + i, x = x0[l] + j;
            inside[l] = (unsigned)y < (unsigned)h && (unsigned)x < (unsigned)w;
            a_offset[l] = (inside[l] ? (y * w + x) * c : 0) + quad;
        }
    };
    float4 a_next[A_LOADS], b_next[B_LOADS];
    auto load = [&](int) {
        const int left = c - c0;
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l) {
            float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            const float* channels = source[l] + a_offset[l];
#if C4
            if (inside[l] && quad < left) v = *reinterpret_cast<const float4*>(channels);
#else
            if (inside[l] && quad < left) v.x = channels[0];
            if (inside[l] && quad + 1 < left) v.y = channels[1];
            if (inside[l] && quad + 2 < left) v.z = channels[2];
            if (inside[l] && quad + 3 < left) v.w = channels[3];
#endif
            a_next[l] = v;
            a_offset[l] += BK;
        }
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l)
            b_next[l] = b_inside && b_row + l * B_ROWS < left
                            ? *reinterpret_cast<const float4*>(packed + (b_offset + l * B_ROWS * pitch))
                            : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        b_offset += BK * pitch;
        c0 += BK;
        if (c0 < c) return;
        c0 = 0;
        ++position;
        update_offsets();
    };
    auto store = [&](int buffer) {
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l) {
            const int row = a_row + l * (THREADS / QUADS);
            a_tile[buffer][quad][row] = a_next[l].x;
            a_tile[buffer][quad + 1][row] = a_next[l].y;
            a_tile[buffer][quad + 2][row] = a_next[l].z;
            a_tile[buffer][quad + 3][row] = a_next[l].w;
        }
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l)
            *reinterpret_cast<float4*>(&b_tile[buffer][b_row + l * B_ROWS][b_column]) = b_next[l];
    };

    float sum[8][8] = {};
    update_offsets();
    multiply_steps<Tiles>(a_tile, b_tile, m_thread, n_thread, steps, sum, load, store);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const long long row = row0 + m_thread + i % 4 + i / 4 * 4 * Tiles::lanes_m;
        if (row >= pixels) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int ko = column0 + n_thread + half * 4 * Tiles::lanes_n;
            float* target = out + row * k + ko;
            const float* v = &sum[i][half * 4];
            if (k % 4 == 0) {
                if (ko < k) *reinterpret_cast<float4*>(target) = make_float4(v[0], v[1], v[2], v[3]);
            } else {
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (ko + j < k) target[j] = v[j];
            }
        }
    }
}
