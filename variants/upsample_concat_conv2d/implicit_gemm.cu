// /// opbench
// title     = "nchw: implicit GEMM with register tiles, which gathers skip and low directly"
// builds_on = "flat_divmod"
// mechanism = ["coalesced", "vectorised_access", "shared_memory_tile", "register_tile"]
// tile      = { m = "BM", n = "BN", k = "BK" }
// tune      = { BM = [64, 128], BN = [128, 64], BK = [16, 8] }
// where     = ["BM * BN == 64 * 128 and BK == (16 if BN == 128 else 8)"]
// define.PLANE4 = "p * q % 4 == 0"
// define.BF16   = "dtype == 'bf16'"
// define.BIAS   = "epilogue != 'none'"
// define.RELU   = "epilogue == 'bias_relu'"
// supports  = { epilogue = ["none", "bias", "bias_relu"], dtype = ["f32", "bf16"] }
// requires  = ["(c1 + 4 * c2 + 64) * h * w < 2 ** 31", "(c + 32) * r * s * (k + 4) < 2 ** 31"]
// workspace = { packed = "c * r * s * cdiv(k, 4) * 4" }
//
// [[launch]]
// kernel = "upsample_concat_conv2d_pack_weights"
// grid   = ["cdiv(k, 32) * cdiv(c * r * s, 32)"]
// block  = [32, 8]
// args   = ["weight", "packed", "k", "c * r * s", "cdiv(k, 4) * 4"]
//
// [[launch]]
// kernel = "upsample_concat_conv2d_implicit_gemm"
// grid   = ["cdiv(n * p * q, BN)", "cdiv(k, BM)"]
// block  = ["BM * BN // 64"]
// args   = [
//     "packed", "low", "skip", "bias?", "out", "n", "c1", "c2", "h", "w", "k", "s", "padding", "q", "p * q", "r * s",
//     "r * s * (cdiv(c1, BK) + cdiv(c2, BK))",
// ]
// ///
//
// This is conv2d's kernel of that name: each thread fetches image elements of one output pixel (a column) while the
// tiles are filled. The outer loop goes over filter positions, the inner one over channels, so the next element's
// address costs one addition. Here each filter position has two runs of channels, those of skip and those of low, and a
// thread computes its address before each run: at (y, x) or at (y / 2, x / 2). Limits: the multiply-add rate and the
// loads from shared memory that feed it (4 per 64); if BK does not divide c1 and c2, part of the last step of each run
// is zeros. Idea: Chetlur et al., cuDNN (2014); tiling after CUTLASS, "implicit GEMM convolution".

#include <cuda_bf16.h>

#if BF16
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int THREADS = (BM / 8) * (BN / 8);
constexpr int LANES_M = 4, LANES_N = 8;  // a warp covers 32 rows and 64 columns, 8 x 8 per thread
constexpr int WARPS_N = BN / 64;
constexpr int A_PITCH = BM, B_PITCH = BN;
constexpr int A_LOADS = BM * BK / 4 / THREADS;  // float4 each
constexpr int A_ROWS = THREADS / (BM / 4);      // rows of a step that the block fetches at once
constexpr int B_ROWS = THREADS / BN;
constexpr int B_LOADS = BK / B_ROWS;

// weight [k][depth] -> packed [depth][pitch], zero beyond k: makes the loads of the main kernel contiguous and 16-byte.
extern "C" __global__ void upsample_concat_conv2d_pack_weights(const T* __restrict__ weight, float* __restrict__ packed,
                                                               int k, int depth, int pitch) {
    __shared__ float tile[32][33];
    const int tiles_k = (pitch + 31) / 32;
    const int k0 = blockIdx.x % tiles_k * 32;
    const int depth0 = blockIdx.x / tiles_k * 32;
    for (int i = threadIdx.y; i < 32; i += 8) {
        const int ko = k0 + i, d = depth0 + threadIdx.x;
        tile[i][threadIdx.x] = ko < k && d < depth ? (float)weight[(size_t)ko * depth + d] : 0.0f;
    }
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += 8) {
        const int ko = k0 + threadIdx.x, d = depth0 + i;
        if (ko < pitch && d < depth) packed[(size_t)d * pitch + ko] = tile[threadIdx.x][i];
    }
}

// One BK-deep step: 8 x 8 outputs per thread as four 4 x 4 squares, so that every shared load is 16 bytes, without
// conflict.
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

// Four neighbours of a row of the output, aligned to their size.
__device__ __forceinline__ void store4(T* to, const float* from) {
#if BF16
    const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(from[0], from[1]), __floats2bfloat162_rn(from[2], from[3])};
    *reinterpret_cast<uint2*>(to) =
        make_uint2(*reinterpret_cast<const unsigned*>(&pairs[0]), *reinterpret_cast<const unsigned*>(&pairs[1]));
#else
    *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
#endif
}

// plane = p * q, positions = r * s, steps = r * s * (ceil(c1 / BK) + ceil(c2 / BK))
// packed [c2+c1][r][s][pitch] (output channels innermost), low [n][c1][h][w], skip [n][c2][2h][2w], out [n][k][p][q]
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    upsample_concat_conv2d_implicit_gemm(const float* __restrict__ packed, const T* __restrict__ low,
                                         const T* __restrict__ skip,
#if BIAS
                                         const T* __restrict__ bias,
#endif
                                         T* __restrict__ out, int n, int c1, int c2, int h, int w, int k, int s,
                                         int padding, int q, unsigned plane, int positions, int steps) {
    __shared__ __align__(16) float a_tile[2][BK][A_PITCH];
    __shared__ __align__(16) float b_tile[2][BK][B_PITCH];
    const long long columns = (long long)n * plane;
    const int pitch = (k + 3) / 4 * 4;
    const int row0 = blockIdx.y * BM;
    const long long column0 = (long long)blockIdx.x * BN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m_thread = warp / WARPS_N * 32 + lane / LANES_N * 4;
    const int n_thread = warp % WARPS_N * 64 + lane % LANES_N * 4;

    // This thread always fetches for the same pixel, every B_ROWS-th channel. Of the weights it fetches four neighbours
    // of every A_ROWS-th channel. Offsets fit 32 bits within one image (see `requires`), which saves registers and
    // additions.
    const int b_column = threadIdx.x % BN, b_row = threadIdx.x / BN;
    const int a_column = threadIdx.x % (BM / 4) * 4, a_row = threadIdx.x / (BM / 4);
    const int weight_stride = positions * pitch;  // from one channel to the next
    int y0 = -(1 << 30), x0 = 0;                  // a pixel beyond the end lies in a row that no image has
    if (column0 + b_column < columns) {
        const unsigned pixel = (unsigned)((column0 + b_column) % plane);
        y0 = (int)(pixel / q) - padding;
        x0 = (int)(pixel % q) - padding;
        low += (column0 + b_column) / plane * c1 * h * w;
        skip += (column0 + b_column) / plane * c2 * 4 * h * w;
    }
    const bool a_inside = row0 + a_column < pitch;

    int position = 0, left = 0;  // filter position of the step to be fetched, channels left of its run
    bool in_low = false, inside = false;
    int a_offset = 0, b_offset = 0, image_stride = 0;
    const T* source = skip;
    auto update_offsets = [&] {
        const int y = y0 + position / s, x = x0 + position % s;
        inside = (unsigned)y < (unsigned)(2 * h) && (unsigned)x < (unsigned)(2 * w);
        left = in_low ? c1 : c2;
        source = in_low ? low : skip;
        image_stride = in_low ? h * w : 4 * h * w;
        const int place = !inside ? 0 : in_low ? (y >> 1) * w + (x >> 1) : y * 2 * w + x;
        b_offset = b_row * image_stride + place;
        a_offset = (a_row + (in_low ? c2 : 0)) * weight_stride + position * pitch + row0 + a_column;
    };
    float4 a_next[A_LOADS];
    T b_next[B_LOADS];
    auto load = [&] {
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l)
            a_next[l] = a_inside && a_row + l * A_ROWS < left
                            ? *reinterpret_cast<const float4*>(packed + (a_offset + l * A_ROWS * weight_stride))
                            : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l)
            b_next[l] = inside && b_row + l * B_ROWS < left ? source[b_offset + l * B_ROWS * image_stride] : T(0.0f);
        left -= BK;
        a_offset += BK * weight_stride;
        b_offset += BK * image_stride;
        if (left > 0) return;
        position += in_low;
        in_low = !in_low;
        update_offsets();
    };
    auto store = [&](int buffer) {
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l)
            *reinterpret_cast<float4*>(&a_tile[buffer][a_row + l * A_ROWS][a_column]) = a_next[l];
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l) b_tile[buffer][b_row + l * B_ROWS][b_column] = (float)b_next[l];
    };

    float sum[8][8] = {};
    update_offsets();
    load();
    store(0);
    __syncthreads();
    for (int step = 0; step < steps; ++step) {
        // Fetch the next step into registers, multiply the current step meanwhile, then store the next one to the other
        // buffer.
        if (step + 1 < steps) load();
        multiply(a_tile[step % 2], b_tile[step % 2], m_thread, n_thread, sum);
        if (step + 1 < steps) store((step + 1) % 2);
        __syncthreads();
    }
#if BIAS
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int channel = row0 + m_thread + i % 4 + i / 4 * 4 * LANES_M;
        const float shift = channel < k ? (float)bias[channel] : 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[i][j] = RELU ? fmaxf(sum[i][j] + shift, 0.0f) : sum[i][j] + shift;
    }
#endif
    // A group of 4 columns stays within one image and is aligned when 4 divides the plane.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const long long column = column0 + n_thread + half * 4 * LANES_N;
        if (PLANE4) {
            if (column >= columns) continue;
            T* target = out + (column / plane * k + row0 + m_thread) * plane + column % plane;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int m = i % 4 + i / 4 * 4 * LANES_M;
                if (row0 + m_thread + m < k) store4(target + (size_t)m * plane, &sum[i][half * 4]);
            }
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (column + j >= columns) continue;
                T* target = out + ((column + j) / plane * k + row0 + m_thread) * plane + (column + j) % plane;
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const int m = i % 4 + i / 4 * 4 * LANES_M;
                    if (row0 + m_thread + m < k) target[(size_t)m * plane] = (T)sum[i][half * 4 + j];
                }
            }
        }
    }
}
