// /// opbench
// title     = "implicit matrix product: register-tiled, image gathered straight into the tiles, filter position outermost"
// builds_on = "im2col_matmul"
// tune      = { BM = [64, 128], BN = [64, 128], BK = [8, 16] }
// define    = { PLANE4 = "1 if p * q % 4 == 0 else 0" }
// requires  = ["layout == 'nchw'"]
// workspace = { packed = "c * r * s * cdiv(k, 4) * 4" }
// launch    = [{ kernel = "conv2d_pack_weights", grid = ["cdiv(k, 32) * cdiv(c * r * s, 32)"], block = [32, 8], args = ["weight", "packed", "k", "c * r * s", "cdiv(k, 4) * 4"] }, { kernel = "conv2d_implicit_gemm", grid = ["cdiv(k, BM) * cdiv(n * p * q, BN)"], block = ["BM * BN // 64"], args = ["packed", "image", "out", "n", "c", "h", "w", "k", "r", "s", "stride", "padding"] }]
// ///
//
// The im2col matrix is never written: each thread owns one output pixel (a column) and fetches its image elements while
// the tiles are filled. The loop runs filter positions outside and channels inside, so that address and border check of a
// thread change once per filter position and an element costs one add; no division is left in the loop. The weights are
// transposed beforehand (1 to 2 % of the time) for 16-byte loads without a transposing store. One step is prefetched
// into registers while the other is multiplied. Limited by the multiply-add rate and the shared loads that feed it (4
// per 64), and by idle SMs when k * n * p * q makes few tiles; with c below BK part of each step is zeros.
// Idea: Chetlur et al., cuDNN (2014); tiling after CUTLASS, "implicit GEMM convolution".

constexpr int THREADS = (BM / 8) * (BN / 8);
constexpr int LANES_M = 4, LANES_N = 8;  // a warp covers 32 rows and 64 columns, 8 x 8 per thread
constexpr int WARPS_N = BN / 64;
constexpr int A_PITCH = BM, B_PITCH = BN;
constexpr int A_LOADS = BM * BK / 4 / THREADS;  // float4 each
constexpr int B_ROWS = THREADS / BN;            // rows of a step that the block fetches at once
constexpr int B_LOADS = BK / B_ROWS;

// weight [k][depth] -> packed [depth][pitch], zero beyond k: makes the loads of the main kernel contiguous and 16-byte.
extern "C" __global__ void conv2d_pack_weights(const float* __restrict__ weight, float* __restrict__ packed, int k,
                                               int depth, int pitch) {
    __shared__ float tile[32][33];
    const int tiles_k = (pitch + 31) / 32;
    const int k0 = blockIdx.x % tiles_k * 32;
    const int depth0 = blockIdx.x / tiles_k * 32;
    for (int i = threadIdx.y; i < 32; i += 8) {
        const int ko = k0 + i, d = depth0 + threadIdx.x;
        tile[i][threadIdx.x] = ko < k && d < depth ? weight[(size_t)ko * depth + d] : 0.0f;
    }
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += 8) {
        const int ko = k0 + threadIdx.x, d = depth0 + i;
        if (ko < pitch && d < depth) packed[(size_t)d * pitch + ko] = tile[threadIdx.x][i];
    }
}

// One BK-deep step: 8 x 8 outputs per thread as four 4 x 4 squares, so that every shared load is 16 bytes without conflict.
__device__ __forceinline__ void multiply(const float (*a)[A_PITCH], const float (*b)[B_PITCH], int row, int column,
                                         float (&sum)[8][8]) {
#pragma unroll
    for (int kk = 0; kk < BK; ++kk) {
        const float4 a0 = *reinterpret_cast<const float4*>(&a[kk][row]);
        const float4 a1 = *reinterpret_cast<const float4*>(&a[kk][row + 4 * LANES_M]);
        const float4 b0 = *reinterpret_cast<const float4*>(&b[kk][column]);
        const float4 b1 = *reinterpret_cast<const float4*>(&b[kk][column + 4 * LANES_N]);
        const float x[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};
        const float y[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
            for (int j = 0; j < 8; ++j) sum[i][j] += x[i] * y[j];
    }
}

// packed [c][r][s][pitch] (output channels innermost), image [n][c][h][w], out [n][k][p][q]
extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    conv2d_implicit_gemm(const float* __restrict__ packed, const float* __restrict__ image, float* __restrict__ out,
                         int n, int c, int h, int w, int k, int r, int s, int stride, int padding) {
    __shared__ __align__(16) float a_tile[2][BK][A_PITCH];
    __shared__ __align__(16) float b_tile[2][BK][B_PITCH];
    const int q = (w + 2 * padding - s) / stride + 1;
    const unsigned plane = (unsigned)((h + 2 * padding - r) / stride + 1) * q;
    const long long columns = (long long)n * plane;
    const int pitch = (k + 3) / 4 * 4;
    // Blocks that share image columns run next to each other, so that the image comes from memory once.
    const int tiles_m = (k + BM - 1) / BM;
    const int row0 = blockIdx.x % tiles_m * BM;
    const long long column0 = (long long)(blockIdx.x / tiles_m) * BN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m_thread = warp / WARPS_N * 32 + lane / LANES_N * 4;
    const int n_thread = warp % WARPS_N * 64 + lane % LANES_N * 4;

    // This thread fetches for one pixel, always the same, and for every B_ROWS-th channel.
    const int b_column = threadIdx.x % BN, b_row = threadIdx.x / BN;
    const long long column = column0 + b_column;
    const unsigned pixel = (unsigned)(column % plane);
    const int y0 = (int)(pixel / q) * stride - padding, x0 = (int)(pixel % q) * stride - padding;
    const size_t hw = (size_t)h * w;
    const float* channel0 = image + (column < columns ? column / plane : 0) * c * hw;
    const size_t weight_stride = (size_t)r * s * pitch;  // from one channel to the next

    int i = 0, j = 0, c0 = 0;  // filter position and first channel of the step to be fetched
    const float* b_source = channel0;
    const float* a_source = packed;
    bool inside = false;
    auto aim = [&] {
        const int y = y0 + i, x = x0 + j;
        inside = column < columns && (unsigned)y < (unsigned)h && (unsigned)x < (unsigned)w;
        b_source = channel0 + (inside ? (size_t)y * w + x : 0) + b_row * hw;
        a_source = packed + (size_t)(i * s + j) * pitch + row0;
    };
    float4 a_next[A_LOADS];
    float b_next[B_LOADS];
    auto load = [&] {
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l) {
            const int e = threadIdx.x + l * THREADS;
            const int kk = e / (BM / 4), m = e % (BM / 4) * 4;
            a_next[l] = c0 + kk < c && row0 + m < pitch
                            ? *reinterpret_cast<const float4*>(a_source + kk * weight_stride + m)
                            : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l)
            b_next[l] = inside && c0 + b_row + l * B_ROWS < c ? b_source[l * B_ROWS * hw] : 0.0f;
        c0 += BK;
        a_source += BK * weight_stride;
        b_source += BK * hw;
        if (c0 < c) return;
        c0 = 0;
        if (++j == s) {
            j = 0;
            ++i;
        }
        aim();
    };
    auto store = [&](int buffer) {
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l) {
            const int e = threadIdx.x + l * THREADS;
            *reinterpret_cast<float4*>(&a_tile[buffer][e / (BM / 4)][e % (BM / 4) * 4]) = a_next[l];
        }
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l) b_tile[buffer][b_row + l * B_ROWS][b_column] = b_next[l];
    };

    float sum[8][8] = {};
    const int steps = r * s * ((c + BK - 1) / BK);
    aim();
    load();
    store(0);
    __syncthreads();
    for (int step = 0; step < steps; ++step) {
        // Fetch the next step into registers, multiply this one meanwhile, then fill the other buffer.
        if (step + 1 < steps) load();
        multiply(a_tile[step % 2], b_tile[step % 2], m_thread, n_thread, sum);
        if (step + 1 < steps) store((step + 1) % 2);
        __syncthreads();
    }
    // A group of 4 columns stays within one image and is 16-byte aligned when 4 divides the plane.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const long long column = column0 + n_thread + half * 4 * LANES_N;
        if (PLANE4) {
            if (column >= columns) continue;
            const size_t ni = column / plane;
            const size_t pixel = column % plane;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int ko = row0 + m_thread + i % 4 + i / 4 * 4 * LANES_M;
                if (ko >= k) continue;
                const float* v = &sum[i][half * 4];
                *reinterpret_cast<float4*>(out + (ni * k + ko) * plane + pixel) = make_float4(v[0], v[1], v[2], v[3]);
            }
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (column + j >= columns) continue;
                const size_t ni = (column + j) / plane;
                const size_t pixel = (column + j) % plane;
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const int ko = row0 + m_thread + i % 4 + i / 4 * 4 * LANES_M;
                    if (ko < k) out[(ni * k + ko) * plane + pixel] = sum[i][half * 4 + j];
                }
            }
        }
    }
}
