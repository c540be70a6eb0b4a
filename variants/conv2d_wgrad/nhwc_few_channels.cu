// /// opbench
// title     = "nhwc, few input channels: all weights of four filters stay in registers while dout streams by once"
// builds_on = "implicit_gemm_split"
// supports  = { layout = ["nhwc"], bias = ["no", "yes"], dtype = ["f32", "bf16"] }
// tune      = { BLOCK = [256, 128], SPLIT = [528, 1056, 264] }
// workspace = { parts = "k * (c * r * s + BIAS) * SPLIT" }
// requires  = ["c * r * s <= 32", "k <= 4 * BLOCK", "r * ((q - 1) * stride + s) * c <= 10240", "n * p < 2 ** 31"]
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
// shared = "4 * max(r * ((q - 1) * stride + s) * c, 4 * BLOCK)"
// args   = ["image", "dout", "parts", "n", "h", "w", "k", "padding", "p", "q"]
//
// [[launch]]
// kernel = "conv2d_wgrad_add_split"
// grid   = ["cdiv(k * (c * r * s + BIAS), 8)"]
// block  = [256]
// args   = ["parts", "dweight", "dbias?", "k"]
// ///
//
// The first layer of a network has some 27 weights a filter, too few for the tiles of a matrix product, and a million
// pixels. Here a thread keeps the sums of four filters, walks over pixels, reads four channels of dout by one load, and
// finds the pixel's window in shared memory, where a block brings the image rows of one row of dout, zeros around them:
// one load for four multiply-adds and no check. dout is read once. The sums of a block's threads are added in order, and
// those of SPLIT blocks by one warp each in a fixed tree: the same bits every time on every GPU. Limit: reading dout, and
// about as much the loads from shared memory; the two barriers of a row.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int DEPTH = R * S * C, SUMS = DEPTH + BIAS;

// Four numbers, of which `left` exist.
__device__ __forceinline__ void load_four(float (&to)[4], const T* __restrict__ from, int left) {
#if K4
    union __align__(4 * sizeof(T)) Four {
        T elements[4];
#if BF16
        uint2 bits;
    } four;
    four.bits = *reinterpret_cast<const uint2*>(from);
#else
        uint4 bits;
    } four;
    four.bits = *reinterpret_cast<const uint4*>(from);
#endif
#pragma unroll
    for (int v = 0; v < 4; ++v) to[v] = (float)four.elements[v];
#else
#pragma unroll
    for (int v = 0; v < 4; ++v) to[v] = v < left ? (float)from[v] : 0.0f;
#endif
}

// image [n][h][w][C], dout [n][p][q][k], parts [k][SUMS][SPLIT]
extern "C" __global__ void __launch_bounds__(BLOCK)
    conv2d_wgrad_nhwc_few_channels(const T* __restrict__ image, const T* __restrict__ dout, float* __restrict__ parts,
                                   int n, int h, int w, int k, int padding, int p, int q) {
    extern __shared__ __align__(16) float shared[];
    const int groups = (k + 3) / 4, at_once = BLOCK / groups;  // of four filters; pixels
    const int group = threadIdx.x % groups, first = threadIdx.x / groups;
    const int line = ((q - 1) * STRIDE + S) * C;  // of an image row in shared memory
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
#pragma unroll 2
        for (int pixel = first; pixel < q; pixel += at_once) {
            float gradient[4];
            load_four(gradient, gradients + (size_t)pixel * k, k - group * 4);
            const float* window = shared + pixel * STRIDE * C;
#pragma unroll
            for (int i = 0; i < R; ++i)
#pragma unroll
                for (int e = 0; e < S * C; ++e)
#pragma unroll
                    for (int v = 0; v < 4; ++v) sum[i * S * C + e][v] += gradient[v] * window[i * line + e];
#if BIAS
#pragma unroll
            for (int v = 0; v < 4; ++v) sum[DEPTH][v] += gradient[v];
#endif
        }
    }
#pragma unroll
    for (int e = 0; e < SUMS; ++e) {
        __syncthreads();
#pragma unroll
        for (int v = 0; v < 4; ++v)
            if (first < at_once) shared[(first * groups + group) * 4 + v] = sum[e][v];
        __syncthreads();
        for (int filter = threadIdx.x; filter < k; filter += BLOCK) {
            float total = 0.0f;
            for (int z = 0; z < at_once; ++z) total += shared[z * groups * 4 + filter];
            parts[((size_t)filter * SUMS + e) * SPLIT + blockIdx.x] = total;
        }
    }
}

// parts [k][SUMS][SPLIT], dweight [k][DEPTH], dbias [k]; a warp per sum
extern "C" __global__ void __launch_bounds__(256)
    conv2d_wgrad_add_split(const float* __restrict__ parts, float* __restrict__ dweight,
#if BIAS
                           float* __restrict__ dbias,
#endif
                           int k) {
    const int index = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (index >= k * SUMS) return;
    float sum = 0.0f;
    for (int z = lane; z < SPLIT; z += 32) sum += parts[(size_t)index * SPLIT + z];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffu, sum, distance);
    if (lane != 0) return;
    if (index % SUMS < DEPTH) dweight[index / SUMS * DEPTH + index % SUMS] = sum;
#if BIAS
    if (index % SUMS == DEPTH) dbias[index / SUMS] = sum;
#endif
}
