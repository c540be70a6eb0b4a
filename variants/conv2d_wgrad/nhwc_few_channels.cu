// /// opbench
// title     = "nhwc, few input channels: all weights of four filters in registers; dout is read once"
// builds_on = "implicit_gemm_split"
// mechanism = ["coalesced", "shared_memory_tile", "register_tile", "compile_time_sizes", "split_k"]
// supports  = { layout = ["nhwc"], bias = ["no", "yes"], dtype = ["f32", "bf16"] }
// tune      = { BLOCK = [256, 128], PIXELS = [2, 4, 1], SPLIT = [528, 1056] }
// workspace = { parts = "k * (c * r * s + BIAS) * SPLIT" }
// requires  = [
//     "c * r * s <= 32", "k <= 4 * BLOCK", "r * ((cdiv(q, PIXELS) * PIXELS - 1) * stride + s) * c <= 10240",
//     "n * p < 2 ** 31",
// ]
//
// [define]
// BF16   = "dtype == 'bf16'"
// BIAS   = "1 if bias == 'yes' else 0"
// K4     = "k % 4 == 0"
// C      = "c"
// R      = "r"
// S      = "s"
// STRIDE = "stride"
//
// [[launch]]
// kernel = "conv2d_wgrad_nhwc_few_channels"
// grid   = ["SPLIT"]
// block  = ["BLOCK"]
// shared = "4 * max(r * ((cdiv(q, PIXELS) * PIXELS - 1) * stride + s) * c, 4 * BLOCK)"
// args   = [
//     "image", "dout", "parts", "n", "h", "w", "k", "padding", "p", "q",
//     "((cdiv(q, PIXELS) * PIXELS - 1) * stride + s) * c",
// ]
//
// [[launch]]
// kernel = "conv2d_wgrad_add_split"
// grid   = ["cdiv(k * (c * r * s + BIAS), 32)"]
// block  = [32, 16]
// args   = ["parts", "dweight", "dbias?", "k"]
// ///
//
// The first layer of a network has about 27 weights per filter, too few for the tiles of a matrix product, and a
// million pixels. For each row of dout, a block copies the image rows that its windows use to shared memory, with zeros
// around them. A thread keeps the sums of four filters in registers and loops over pixels: it reads four channels of
// dout by one load and the pixel's window from shared memory. So one load serves four multiply-adds, or more if the
// windows of PIXELS neighbours overlap, and borders need no check. dout is read once. The sums of a block's threads are
// added in order; a second kernel adds those of the SPLIT blocks, also in a fixed order. So the bits are the same every
// time and on every GPU. Limit: reading dout, and about as much the loads from shared memory; the two barriers per row.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int DEPTH = R * S * C, SUMS = DEPTH + BIAS;
constexpr int SPAN = ((PIXELS - 1) * STRIDE + S) * C;  // elements of a row of the windows of PIXELS neighbours

// Load four numbers, of which only the first `left` exist; the others are 0. If four divides k, all exist or none.
__device__ __forceinline__ void load_four(float (&to)[4], const T* __restrict__ from, int left) {
#if K4
    union __align__(4 * sizeof(T)) Four {
        T elements[4];
#if BF16
        uint2 bits;
    } four;
    four.bits = left > 0 ? *reinterpret_cast<const uint2*>(from) : make_uint2(0u, 0u);
#else
        uint4 bits;
    } four;
    four.bits = left > 0 ? *reinterpret_cast<const uint4*>(from) : make_uint4(0u, 0u, 0u, 0u);
#endif
#pragma unroll
    for (int v = 0; v < 4; ++v) to[v] = (float)four.elements[v];
#else
#pragma unroll
    for (int v = 0; v < 4; ++v) to[v] = v < left ? (float)from[v] : 0.0f;
#endif
}

// image [n][h][w][C], dout [n][p][q][k], parts [SPLIT][SUMS][k]; line: elements of an image row in shared memory, with
// the zeros around it
extern "C" __global__ void __launch_bounds__(BLOCK)
    conv2d_wgrad_nhwc_few_channels(const T* __restrict__ image, const T* __restrict__ dout, float* __restrict__ parts,
                                   int n, int h, int w, int k, int padding, int p, int q, int line) {
    extern __shared__ __align__(16) float shared[];
    const int groups = (k + 3) / 4, at_once = BLOCK / groups;  // of four filters; pixels
    const int group = threadIdx.x % groups, first = threadIdx.x / groups;
    const int begin = (int)((long long)n * p * blockIdx.x / SPLIT);
    const int end = (int)((long long)n * p * (blockIdx.x + 1) / SPLIT);
    float sum[SUMS][4] = {};
    for (int row = begin; row < end; ++row) {
        const int top = row % p * STRIDE - padding;
        const T* from = image + (size_t)(row / p) * h * w * C;
        __syncthreads();
        for (int e = threadIdx.x; e < R * line; e += BLOCK) {
            const int y = top + e / line, x = e % line - padding * C;  // x: of a channel
            const bool inside = (unsigned)y < (unsigned)h && (unsigned)x < (unsigned)(w * C);
            shared[e] = inside ? (float)from[(size_t)y * w * C + x] : 0.0f;
        }
        __syncthreads();
        if (first >= at_once) continue;
        const T* gradients = dout + (size_t)row * q * k + group * 4;
        for (int pixel = first * PIXELS; pixel < q; pixel += at_once * PIXELS) {
            float gradient[PIXELS][4];
#pragma unroll
            for (int u = 0; u < PIXELS; ++u)
                load_four(gradient[u], gradients + (size_t)(pixel + u) * k, pixel + u < q ? k - group * 4 : 0);
#pragma unroll
            for (int i = 0; i < R; ++i) {
                float window[SPAN];
#pragma unroll
                for (int e = 0; e < SPAN; ++e) window[e] = shared[i * line + pixel * STRIDE * C + e];
#pragma unroll
                for (int u = 0; u < PIXELS; ++u)
#pragma unroll
                    for (int e = 0; e < S * C; ++e)
#pragma unroll
                        for (int v = 0; v < 4; ++v)
                            sum[i * S * C + e][v] += gradient[u][v] * window[u * STRIDE * C + e];
            }
#if BIAS
#pragma unroll
            for (int u = 0; u < PIXELS; ++u)
#pragma unroll
                for (int v = 0; v < 4; ++v) sum[DEPTH][v] += gradient[u][v];
#endif
        }
    }
#pragma unroll
    for (int e = 0; e < SUMS; ++e) {
        __syncthreads();
        if (first < at_once)
            reinterpret_cast<float4*>(shared)[first * groups + group] =
                make_float4(sum[e][0], sum[e][1], sum[e][2], sum[e][3]);
        __syncthreads();
        for (int filter = threadIdx.x; filter < k; filter += BLOCK) {
            float total = 0.0f;
            for (int z = 0; z < at_once; ++z) total += shared[z * groups * 4 + filter];
            parts[((size_t)blockIdx.x * SUMS + e) * k + filter] = total;
        }
    }
}

// parts [SPLIT][SUMS][k], dweight [k][DEPTH], dbias [k]; 32 sums a block, each by 16 threads
extern "C" __global__ void __launch_bounds__(512)
    conv2d_wgrad_add_split(const float* __restrict__ parts, float* __restrict__ dweight,
#if BIAS
                           float* __restrict__ dbias,
#endif
                           int k) {
    __shared__ float partial_sums[16][32];
    const int index = blockIdx.x * 32 + threadIdx.x, total = k * SUMS;
    float sum = 0.0f;
    if (index < total) {
#pragma unroll 4
        for (int z = threadIdx.y; z < SPLIT; z += 16) sum += parts[(size_t)z * total + index];
    }
    partial_sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || index >= total) return;
#pragma unroll
    for (int y = 1; y < 16; ++y) sum += partial_sums[y][threadIdx.x];
    const int e = index / k, filter = index % k;
    if (e < DEPTH) dweight[filter * DEPTH + e] = sum;
#if BIAS
    if (e == DEPTH) dbias[filter] = sum;
#endif
}
