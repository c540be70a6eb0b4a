// /// opbench
// title     = "implicit GEMM with register tiles: dout is gathered directly, filter position outermost"
// builds_on = "gather"
// mechanism = ["coalesced", "vectorised_access", "shared_memory_tile", "register_tile"]
// tile      = { m = "BM", n = "BN", k = "BK" }
// supports  = { layout = ["nchw", "nhwc"], epilogue = ["none", "add", "mask", "add_mask"], dtype = ["f32", "bf16"] }
// tune      = { BM = [128, 64], BN = [64, 128], BK = [8, 16] }
// where     = ["BK == 8 or BM * BN == 64 * 64"]
// requires  = ["n * c * h * w + BM < 2 ** 31", "n * k * p * q < 2 ** 31", "k * c * r * s < 2 ** 31"]
//
// [define]
// NHWC = "layout == 'nhwc'"
// BF16 = "dtype == 'bf16'"
// ADD  = "epilogue in ('add', 'add_mask')"
// MASK = "epilogue in ('mask', 'add_mask')"
//
// [[launch]]
// kernel = "conv2d_dgrad_implicit_gemm"
// grid   = ["cdiv(n * h * w, BM) * cdiv(c, BN)"]
// block  = ["BM * BN // 64"]
// args   = [
//     "dout", "weight", "skip?", "out?", "dimage", "n", "c", "h", "w", "k", "r", "s", "stride", "padding", "p", "q",
// ]
// ///
//
// The gradient is a matrix product: rows are pixels of the image, columns are its channels, and the depth is filter
// positions times output channels. For pixel (y, x), position (i, j) fetches the element of dout at ((y + padding - i)
// / stride, (x + padding - j) / stride), so address and check change once per position. The filters are read in their
// stored order, neither rotated nor transposed. A step is fetched into registers while the previous step is multiplied,
// and 16 numbers from shared memory serve 64 multiply-adds. The result is right for any stride, but at stride s only 1
// of s * s products is not with zero. Limit: the multiply-adds, and in nchw loads of weights that are r * s elements
// apart. Idea: "implicit GEMM convolution" of CUTLASS, as in the forward variant.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int THREADS = (BM / 8) * (BN / 8);
constexpr int LANES_M = 8, LANES_N = 4;  // a warp covers 64 rows and 32 columns, 8 x 8 per thread
constexpr int WARPS_N = BN / 32;
constexpr int A_PITCH = BM + 4, B_PITCH = BN;
constexpr int A_LOADS = BM * BK / THREADS, B_LOADS = BN * BK / THREADS;
constexpr int PIXELS = NHWC ? A_LOADS : 1;  // pixels for which a thread loads

// The output channel and the pixel of each load of a thread from dout: consecutive threads load elements that are
// consecutive in memory.
__device__ __forceinline__ int depth_of(int l) {
    return NHWC ? threadIdx.x % BK : threadIdx.x / BM + l * (THREADS / BM);
}
__device__ __forceinline__ int pixel_of(int l) {
    return NHWC ? threadIdx.x / BK + l * (THREADS / BK) : threadIdx.x % BM;
}

// nchw: dout [n][k][p][q], weight [k][c][r][s], skip, out and dimage [n][c][h][w]; nhwc: channels innermost
extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_dgrad_implicit_gemm(const T* __restrict__ dout, const T* __restrict__ weight,
#if ADD
                               const T* __restrict__ skip,
#endif
#if MASK
                               const T* __restrict__ out,
#endif
                               T* __restrict__ dimage, int n, int c, int h, int w, int k, int r, int s, int stride,
                               int padding, int p, int q) {
    __shared__ __align__(16) float a_tile[2][BK][A_PITCH];
    __shared__ __align__(16) float b_tile[2][BK][B_PITCH];
    const int pixels = n * h * w, tiles_n = (c + BN - 1) / BN;
    const int row0 = blockIdx.x / tiles_n * BM, column0 = blockIdx.x % tiles_n * BN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m_thread = warp / WARPS_N * 64 + lane / LANES_N * 4;
    const int n_thread = warp % WARPS_N * 32 + lane % LANES_N * 4;
    const int to_output = NHWC ? 1 : p * q, weight_pitch = c * r * s;  // from one output channel to the next

    int y[PIXELS], x[PIXELS], item[PIXELS];  // with the padding
#pragma unroll
    for (int l = 0; l < PIXELS; ++l) {
        const int pixel = row0 + pixel_of(l);
        x[l] = pixel % w + padding, y[l] = pixel / w % h + padding, item[l] = pixel / w / h;
        if (pixel >= pixels) y[l] = -1;
    }
    const int b_column = column0 + threadIdx.x % BN, b_row = threadIdx.x / BN;

    int position = 0, k0 = 0;  // filter position and first output channel of the step to be fetched
    int a_offset[PIXELS], b_offset = 0;
    bool inside[PIXELS];
    auto update_offsets = [&] {
        const int i = position / s, j = position % s;
#pragma unroll
        for (int l = 0; l < PIXELS; ++l) {
            const int down = y[l] - i, right = x[l] - j, row = down / stride, column = right / stride;
            inside[l] =
                down >= 0 && right >= 0 && down == row * stride && right == column * stride && row < p && column < q;
            a_offset[l] = NHWC ? ((item[l] * p + row) * q + column) * k : (item[l] * k * p + row) * q + column;
        }
        b_offset = NHWC ? position * c + b_column : b_column * r * s + position;
    };
    float a_next[A_LOADS], b_next[B_LOADS];
    auto load = [&] {
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l) {
            const int pixel_index = NHWC ? l : 0, output = k0 + depth_of(l);
            a_next[l] =
                inside[pixel_index] && output < k ? (float)dout[a_offset[pixel_index] + output * to_output] : 0.0f;
        }
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l) {
            const int output = k0 + b_row + l * (THREADS / BN);
            b_next[l] = b_column < c && output < k ? (float)weight[b_offset + output * weight_pitch] : 0.0f;
        }
        k0 += BK;
        if (k0 < k) return;
        k0 = 0;
        ++position;
        update_offsets();
    };
    auto store = [&](int buffer) {
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l) a_tile[buffer][depth_of(l)][pixel_of(l)] = a_next[l];
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l) b_tile[buffer][b_row + l * (THREADS / BN)][threadIdx.x % BN] = b_next[l];
    };

    const int steps = r * s * ((k + BK - 1) / BK);
    float sum[8][8] = {};
    update_offsets();
    load();
    store(0);
    __syncthreads();
    for (int step = 0; step < steps; ++step) {
        // Fetch the next step into registers, multiply the current step meanwhile, then store the next one to the other
        // buffer.
        if (step + 1 < steps) load();
        const float (*a)[A_PITCH] = a_tile[step % 2];
        const float (*b)[B_PITCH] = b_tile[step % 2];
#pragma unroll
        for (int d = 0; d < BK; ++d) {
            const float4 a0 = *reinterpret_cast<const float4*>(&a[d][m_thread]);
            const float4 a1 = *reinterpret_cast<const float4*>(&a[d][m_thread + 4 * LANES_M]);
            const float4 b0 = *reinterpret_cast<const float4*>(&b[d][n_thread]);
            const float4 b1 = *reinterpret_cast<const float4*>(&b[d][n_thread + 4 * LANES_N]);
            const float u[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};
            const float v[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) sum[i][j] += u[i] * v[j];
        }
        if (step + 1 < steps) store((step + 1) % 2);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int pixel = row0 + m_thread + i % 4 + i / 4 * 4 * LANES_M;
        if (pixel >= pixels) continue;
        const int plane = h * w, base = NHWC ? pixel * c : pixel / plane * c * plane + pixel % plane;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int channel = column0 + n_thread + j % 4 + j / 4 * 4 * LANES_N;
            if (channel >= c) continue;
            const int at = base + channel * (NHWC ? 1 : plane);
            float total = sum[i][j];
#if ADD
            total += (float)skip[at];
#endif
#if MASK
            if (!((float)out[at] > 0.0f)) total = 0.0f;
#endif
            dimage[at] = (T)total;
        }
    }
}
