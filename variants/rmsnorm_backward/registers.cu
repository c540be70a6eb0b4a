// /// opbench
// title     = "rows in registers, read once; PARTS blocks keep column sums, which a last kernel adds"
// builds_on = "block_per_row"
// mechanism = [
//     "coalesced", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes", "fewer_passes",
//     "persistent", "split_k",
// ]
// tune      = { BLOCK = [512, 256, 1024], PARTS = [264, 132, 528] }
// supports  = { dtype = ["f32", "bf16"], residual = ["none", "add"] }
// requires  = ["cols <= 8 * BLOCK"]
//
// [define]
// BF16       = "dtype == 'bf16'"
// ADD        = "residual == 'add'"
// COLS       = "cols"
// PARTS_USED = "min(rows, PARTS)"
//
// [workspace]
// part_weight = "cols * PARTS_USED"
//
// [[launch]]
// kernel = "rmsnorm_backward_rows"
// grid   = ["PARTS_USED"]
// block  = ["BLOCK"]
// args   = ["x", "dout", "weight", "rstd", "dsum?", "dx", "part_weight", "rows"]
//
// [[launch]]
// kernel = "rmsnorm_backward_columns"
// grid   = ["cdiv(cols, 32)"]
// block  = ["32", "16"]
// args   = ["part_weight", "dweight", "PARTS_USED", "cols"]
// ///
//
// A thread has the same columns in each row of its block, and adds their products in registers, in the order of the
// rows. So both gradients need only one read of x and dout. The number of parts depends only on the problem and PARTS,
// so the bits are the same on every GPU. Limits: 4 bytes (2 in bf16) per access; nothing is loaded while the sums of a
// row are reduced; rows longer than 8 * BLOCK need the previous variant.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int ITEMS = (COLS + BLOCK - 1) / BLOCK;

extern "C" __global__ void __launch_bounds__(BLOCK)
    rmsnorm_backward_rows(const T* __restrict__ x, const T* __restrict__ dout, const float* __restrict__ weight,
                          const float* __restrict__ rstd,
#if ADD
                          const T* __restrict__ dsum,
#endif
                          T* __restrict__ dx, float* __restrict__ part_weight, int rows) {
    // x, dout, dsum, dx [rows][cols]; weight [cols]; rstd [rows]; parts [PARTS_USED][cols]
    __shared__ float warps[2][BLOCK / 32][1];  // of this row and of the next one, so that one barrier per row is enough
    float weights[ITEMS], of_weight[ITEMS] = {};
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int c = k * BLOCK + threadIdx.x;
        weights[k] = c < COLS ? weight[c] : 0.0f;
    }
    int buffer = 0;
    for (int row = blockIdx.x; row < rows; row += PARTS_USED, buffer ^= 1) {
        const size_t base = (size_t)row * COLS + threadIdx.x;
        const float factor = rstd[row];
        float normalised[ITEMS], gradients[ITEMS], product = 0.0f;
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            const bool inside = COLS % BLOCK == 0 || k * BLOCK + threadIdx.x < COLS;
            normalised[k] = inside ? (float)x[base + k * BLOCK] * factor : 0.0f;
            gradients[k] = inside ? (float)dout[base + k * BLOCK] : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            product += gradients[k] * weights[k] * normalised[k];
            of_weight[k] += gradients[k] * normalised[k];
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            product += __shfl_xor_sync(0xffffffffu, product, step);
        }
        if (threadIdx.x % 32 == 0) {
            warps[buffer][threadIdx.x / 32][0] = product;
        }
        __syncthreads();
        product = 0.0f;
#pragma unroll
        for (int warp = 0; warp < BLOCK / 32; ++warp) {
            product += warps[buffer][warp][0];
        }
        product /= COLS;
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            if (COLS % BLOCK != 0 && k * BLOCK + threadIdx.x >= COLS) break;
            float gradient = factor * (gradients[k] * weights[k] - normalised[k] * product);
#if ADD
            gradient += (float)dsum[base + k * BLOCK];
#endif
            dx[base + k * BLOCK] = (T)gradient;
        }
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (COLS % BLOCK != 0 && k * BLOCK + threadIdx.x >= COLS) break;
        const size_t i = (size_t)blockIdx.x * COLS + k * BLOCK + threadIdx.x;
        part_weight[i] = of_weight[k];
    }
}

extern "C" __global__ void __launch_bounds__(512)
    rmsnorm_backward_columns(const float* __restrict__ part_weight, float* __restrict__ dweight, int parts, int cols) {
    // part_weight [parts][cols]; dweight [cols]
    __shared__ float products[16][32];
    const int c = blockIdx.x * 32 + threadIdx.x;
    float product = 0.0f;
    if (c < cols) {
#pragma unroll 4
        for (int part = threadIdx.y; part < parts; part += 16) {
            product += part_weight[(size_t)part * cols + c];
        }
    }
    products[threadIdx.y][threadIdx.x] = product;
    __syncthreads();
    if (threadIdx.y != 0 || c >= cols) return;
#pragma unroll
    for (int y = 1; y < 16; ++y) {
        product += products[y][threadIdx.x];
    }
    dweight[c] = product;
}
