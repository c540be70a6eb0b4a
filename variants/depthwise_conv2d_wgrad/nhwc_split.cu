// /// opbench
// title     = "nhwc: LANES channels per thread, pixels split over up to SPLIT blocks; a second kernel adds sums"
// builds_on = "block_per_channel"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "compile_time_sizes", "register_tile", "split_k",
// ]
// supports  = { layout = ["nhwc"], bias = ["no", "yes"], dtype = ["f32", "bf16"] }
// tune      = { SPLIT = [256, 64, 1024], DOWN = [16, 8] }
// requires  = ["n * c * h * w < 2 ** 31", "r * s <= 49", "cdiv(c // lanes, 8) <= 65535"]
//
// [define]
// BF16 = "dtype == 'bf16'"
// BIAS = "bias == 'yes'"
// LANES = "lanes"
// R = "r"
// S = "s"
// STRIDE = "stride"
// DILATION = "dilation"
// PARTS = "min(SPLIT, cdiv(n * p * q, 4 * DOWN))"
//
// [workspace]
// parts = "PARTS * (r * s + (1 if BIAS else 0)) * c"
//
// [[launch]]
// kernel = "depthwise_wgrad_parts"
// grid   = ["PARTS", "cdiv(c // lanes, 8)"]
// block  = ["8", "DOWN"]
// args   = ["image", "dout", "parts", "n", "c // lanes", "h", "w", "padding", "p", "q"]
//
// [[launch]]
// kernel = "depthwise_wgrad_sums"
// grid   = ["cdiv((r * s + (1 if BIAS else 0)) * c, 128)"]
// block  = ["128"]
// args   = ["parts", "dweight", "dbias?", "c"]
// ///
//
// In nhwc, vectors of channels are contiguous, and as many blocks as fill the GPU share the pixels of a batch. A block
// adds the sums of its DOWN rows of threads in shared memory, one filter position at a time. The second kernel adds the
// partial sums in a fixed order, so the bits do not depend on timing. Limit: r * s vectors of the image for each vector
// of dout, nearly all from the L1 cache.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

struct __align__(sizeof(T) * LANES) Pack { T lane[LANES]; };
constexpr int SUMS = R * S + BIAS;

extern "C" __global__ void __launch_bounds__(8 * DOWN)
    depthwise_wgrad_parts(const Pack* __restrict__ image, const Pack* __restrict__ dout, float* __restrict__ parts,
                          int n, int vectors, int h, int w, int padding, int p, int q) {
    // image [n][h][w][vectors]; dout [n][p][q][vectors]; parts [PARTS][SUMS][vectors][LANES]
    __shared__ float rows[DOWN][8 * LANES];
    const int vector = blockIdx.y * 8 + threadIdx.x;
    const bool inside = vector < vectors;
    float sums[SUMS][LANES] = {};
    if (inside) {
        for (int index = blockIdx.x * DOWN + threadIdx.y; index < n * p * q; index += PARTS * DOWN) {
            const int number = index / (p * q), pixel = index % (p * q);
            const int y = pixel / q * STRIDE - padding, x = pixel % q * STRIDE - padding;
            const Pack gradient = dout[(size_t)index * vectors + vector];
#pragma unroll
            for (int i = 0; i < R; ++i) {
                const int row = y + i * DILATION;
                if (row < 0 || row >= h) continue;
#pragma unroll
                for (int j = 0; j < S; ++j) {
                    const int column = x + j * DILATION;
                    if (column < 0 || column >= w) continue;
                    const Pack value = image[(size_t)((number * h + row) * w + column) * vectors + vector];
#pragma unroll
                    for (int lane = 0; lane < LANES; ++lane)
                        sums[i * S + j][lane] += (float)gradient.lane[lane] * (float)value.lane[lane];
                }
            }
#pragma unroll
            for (int lane = 0; BIAS && lane < LANES; ++lane) sums[SUMS - 1][lane] += (float)gradient.lane[lane];
        }
    }
#pragma unroll
    for (int k = 0; k < SUMS; ++k) {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) rows[threadIdx.y][lane * 8 + threadIdx.x] = sums[k][lane];
        __syncthreads();
        for (int lane = threadIdx.y; inside && lane < LANES; lane += DOWN) {
            float sum = 0.0f;
#pragma unroll
            for (int row = 0; row < DOWN; ++row) sum += rows[row][lane * 8 + threadIdx.x];
            parts[((size_t)(blockIdx.x * SUMS + k) * vectors + vector) * LANES + lane] = sum;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(128)
    depthwise_wgrad_sums(const float* __restrict__ parts, float* __restrict__ dweight,
#if BIAS
                         float* __restrict__ dbias,
#endif
                         int c) {
    // parts [PARTS][SUMS][c]; dweight [R][S][c]; dbias [c]
    const int index = blockIdx.x * 128 + threadIdx.x;
    if (index >= SUMS * c) return;
    float sum = 0.0f;
#pragma unroll 8
    for (int part = 0; part < PARTS; ++part) sum += parts[(size_t)part * (SUMS * c) + index];
#if BIAS
    if (index >= R * S * c) {
        dbias[index - R * S * c] = sum;
        return;
    }
#endif
    dweight[index] = sum;
}
