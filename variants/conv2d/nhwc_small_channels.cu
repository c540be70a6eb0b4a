// /// opbench
// title     = "nhwc, few input channels: filters and image in shared memory, 8 channels x PIXELS pixels per thread"
// builds_on = "nhwc_direct"
// mechanism = ["shared_memory_tile", "register_tile", "bank_conflict_free", "compile_time_sizes", "few_channels"]
// tune      = { PIXELS = [4, 8, 2], ROWS = [4, 8] }
// where     = ["ROWS == 4 or PIXELS == 4"]
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32", "bf16"] }
// requires  = [
//     "c <= 4", "r * s <= 256", "(PIXELS - 1) * stride + s <= 64",
//     "n * cdiv(p, ROWS) * cdiv(q, 8 * PIXELS) * cdiv(k, 32) < 2 ** 31",
//     """4 * c * (r * s * 32 + ((ROWS - 1) * stride + r) * cdiv((PIXELS * 8 - 1) * stride + s, PIXELS * stride) * \
//        (PIXELS * stride + 1 - PIXELS * stride % 2)) <= 227 * 1024""",
// ]
//
// [define]
// C      = "c"
// R      = "r"
// S      = "s"
// STRIDE = "stride"
// BF16   = "1 if dtype == 'bf16' else 0"
// BIAS   = "0 if epilogue == 'none' else 1"
// RELU   = "1 if epilogue == 'bias_relu' else 0"
//
// [[launch]]
// kernel = "conv2d_nhwc_small_channels"
// grid   = ["n * cdiv(p, ROWS) * cdiv(q, 8 * PIXELS) * cdiv(k, 32)"]
// block  = [32, "ROWS"]
// shared = """4 * c * (r * s * 32 + ((ROWS - 1) * stride + r) * \
//             cdiv((PIXELS * 8 - 1) * stride + s, PIXELS * stride) * (PIXELS * stride + 1 - PIXELS * stride % 2))"""
// ///
//
// First layers have 1 or 3 channels, too few for 16-byte loads or for the depth of a matrix product. As in
// small_channels, for each filter row a thread keeps (PIXELS - 1) * stride + s image elements in registers and uses
// each for up to s filter columns. In nhwc the channels of the output are contiguous: four lanes compute 32 of them,
// eight each, and store whole sectors, 16 bytes at a time; bias and ReLU cost nothing. Limit: writing the output for
// 3x3 filters on one channel; the multiply-add rate for larger filters.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;

constexpr int OUT = 8, GROUP = 4 * OUT;             // output channels of a thread and of a block
constexpr int CHUNK = PIXELS * STRIDE;              // image columns from one thread to its neighbour
constexpr int CHUNK_PITCH = CHUNK + 1 - CHUNK % 2;  // odd, so that neighbouring threads use different banks
constexpr int SPAN = (PIXELS * 8 - 1) * STRIDE + S;
constexpr int LINE_PITCH = (SPAN + CHUNK - 1) / CHUNK * CHUNK_PITCH;
constexpr int LINES = (ROWS - 1) * STRIDE + R;
constexpr int NEEDED = (PIXELS - 1) * STRIDE + S;  // image columns of one thread
constexpr int ROWS_UNROLLED = R * S <= 9 ? R : 1;

// Return the o-th channel of this thread, such that each 16-byte store of four lanes is contiguous.
__device__ __forceinline__ int channel_of(int lane_k, int o) {
    return sizeof(T) == 2 ? lane_k * 8 + o : o / 4 * 16 + lane_k * 4 + o % 4;
}

// Store eight channels of one pixel. Only the first `left` channels exist, counted from the block's first channel.
__device__ __forceinline__ void store(T* to, const float (&v)[OUT], int lane_k, int left, bool whole) {
    constexpr int VEC = 16 / sizeof(T);
#pragma unroll
    for (int o = 0; o < OUT; o += VEC) {
        const int first = channel_of(lane_k, o);
        if (whole) {
            union {
                T elements[VEC];
                uint4 bits;
            } packed;
#pragma unroll
            for (int e = 0; e < VEC; ++e) packed.elements[e] = T(v[o + e]);
            if (first < left) *reinterpret_cast<uint4*>(to + first) = packed.bits;
        } else {
#pragma unroll
            for (int e = 0; e < VEC; ++e)
                if (first + e < left) to[first + e] = T(v[o + e]);
        }
    }
}

// image [n][h][w][C], weight [k][R][S][C], bias [k], out [n][p][q][k]
// filters [C][R][S][GROUP], tile [C][LINES][LINE_PITCH]
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    conv2d_nhwc_small_channels(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                               const T* __restrict__ bias,
#endif
                               T* __restrict__ out, int n, int c, int h, int w, int k, int r, int s, int stride,
                               int padding) {
    extern __shared__ __align__(16) float filters[];
    float* tile = filters + C * R * S * GROUP;
    const int p = (h + 2 * padding - R) / STRIDE + 1, q = (w + 2 * padding - S) / STRIDE + 1;
    const int tiles_k = (k + GROUP - 1) / GROUP, tiles_q = (q + PIXELS * 8 - 1) / (PIXELS * 8);
    const int tiles_p = (p + ROWS - 1) / ROWS;
    const unsigned index = blockIdx.x / tiles_k;
    const int k0 = (int)(blockIdx.x % tiles_k) * GROUP, q0 = (int)(index % tiles_q) * PIXELS * 8;
    const int p0 = (int)(index / tiles_q % tiles_p) * ROWS, ni = (int)(index / tiles_q / tiles_p);
    // a warp computes one output row: 8 x PIXELS pixels by 4 x OUT channels
    const int lane_q = threadIdx.x % 8, lane_k = threadIdx.x / 8;
    const int thread = threadIdx.y * 32 + threadIdx.x;

    for (int e = thread; e < GROUP * C * R * S; e += 32 * ROWS) {
        const int ko = e % GROUP, position = e / GROUP % (R * S), ci = e / GROUP / (R * S);
        filters[e] = k0 + ko < k ? (float)weight[((size_t)(k0 + ko) * R * S + position) * C + ci] : 0.0f;
    }
    for (int line = threadIdx.y; line < LINES; line += ROWS) {
        const int y = p0 * STRIDE - padding + line;
        for (int e = threadIdx.x; e < SPAN * C; e += 32) {
            const int column = e / C, ci = e % C, x = q0 * STRIDE - padding + column;
            const bool inside = (unsigned)y < (unsigned)h && (unsigned)x < (unsigned)w;
            tile[(ci * LINES + line) * LINE_PITCH + column / CHUNK * CHUNK_PITCH + column % CHUNK] =
                inside ? (float)image[(((size_t)ni * h + y) * w + x) * C + ci] : 0.0f;
        }
    }
    __syncthreads();

    float sum[PIXELS][OUT] = {};
#pragma unroll 1
    for (int ci = 0; ci < C; ++ci) {
#pragma unroll ROWS_UNROLLED
        for (int i = 0; i < R; ++i) {
            const float* line = tile + (ci * LINES + threadIdx.y * STRIDE + i) * LINE_PITCH + lane_q * CHUNK_PITCH;
            float pixel[NEEDED];
#pragma unroll
            for (int m = 0; m < NEEDED; ++m) pixel[m] = line[m / CHUNK * CHUNK_PITCH + m % CHUNK];
#pragma unroll
            for (int j = 0; j < S; ++j) {
                const float* filter = filters + ((ci * R + i) * S + j) * GROUP;
#pragma unroll
                for (int o = 0; o < OUT; o += 4) {
                    const float4 f = *reinterpret_cast<const float4*>(filter + channel_of(lane_k, o));
#pragma unroll
                    for (int l = 0; l < PIXELS; ++l) {
                        sum[l][o] += f.x * pixel[l * STRIDE + j];
                        sum[l][o + 1] += f.y * pixel[l * STRIDE + j];
                        sum[l][o + 2] += f.z * pixel[l * STRIDE + j];
                        sum[l][o + 3] += f.w * pixel[l * STRIDE + j];
                    }
                }
            }
        }
    }

    const int yo = p0 + threadIdx.y, xo = q0 + lane_q * PIXELS;
    if (yo >= p) return;
#if BIAS
    float shift[OUT];
#pragma unroll
    for (int o = 0; o < OUT; ++o) {
        const int ko = k0 + channel_of(lane_k, o);
        shift[o] = ko < k ? (float)bias[ko] : 0.0f;
    }
#endif
    T* target = out + (((size_t)ni * p + yo) * q + xo) * k + k0;
#pragma unroll
    for (int l = 0; l < PIXELS; ++l) {
        if (xo + l >= q) continue;
#pragma unroll
        for (int o = 0; o < OUT; ++o) {
#if BIAS
            sum[l][o] += shift[o];
#endif
#if RELU
            sum[l][o] = fmaxf(sum[l][o], 0.0f);
#endif
        }
        store(target + (size_t)l * k, sum[l], lane_k, k - k0, k % 8 == 0);
    }
}
