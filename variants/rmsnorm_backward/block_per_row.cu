// /// opbench
// title     = "one block per row for dx; blocks of 32 columns x DOWN rows for dweight"
// builds_on = "naive"
// mechanism = ["coalesced", "block_reduction", "warp_shuffle"]
// tune      = { BLOCK = [256, 128, 512, 1024], DOWN = [16, 8, 32] }
// define    = { BF16 = "dtype == 'bf16'", ADD = "residual == 'add'" }
// supports  = { dtype = ["f32", "bf16"], residual = ["none", "add"] }
//
// [[launch]]
// kernel = "rmsnorm_backward_rows"
// grid   = ["rows"]
// block  = ["BLOCK"]
// args   = ["x", "dout", "weight", "rstd", "dsum?", "dx", "cols"]
//
// [[launch]]
// kernel = "rmsnorm_backward_columns"
// grid   = ["cdiv(cols, 32)"]
// block  = ["32", "DOWN"]
// args   = ["x", "dout", "rstd", "dweight", "rows", "cols"]
// ///
//
// The lanes of a warp read along the rows; the second pass of the first kernel reads them from a cache. A warp of the
// second kernel reads 32 columns of one row, and a block adds the sums of its DOWN warps in shared memory. Limits: the
// second kernel reads x and dout from DRAM again, and a few thousand columns are only few blocks.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
    rmsnorm_backward_rows(const T* __restrict__ x, const T* __restrict__ dout, const float* __restrict__ weight,
                          const float* __restrict__ rstd,
#if ADD
                          const T* __restrict__ dsum,
#endif
                          T* __restrict__ dx, int cols) {
    // x, dout, dsum, dx [rows][cols]; weight [cols]; rstd [rows]
    __shared__ float warps[BLOCK / 32][1];
    const size_t base = (size_t)blockIdx.x * cols;
    float product = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) {
        const float normalised = (float)x[base + c] * rstd[blockIdx.x];
        const float slope = (float)dout[base + c] * weight[c];
        product += slope * normalised;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        product += __shfl_xor_sync(0xffffffffu, product, step);
    }
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32][0] = product;
    }
    __syncthreads();
    product = 0.0f;
#pragma unroll
    for (int warp = 0; warp < BLOCK / 32; ++warp) {
        product += warps[warp][0];
    }
    product /= cols;
    for (int c = threadIdx.x; c < cols; c += BLOCK) {
        const float normalised = (float)x[base + c] * rstd[blockIdx.x];
        const float slope = (float)dout[base + c] * weight[c];
        float gradient = rstd[blockIdx.x] * (slope - normalised * product);
#if ADD
        gradient += (float)dsum[base + c];
#endif
        dx[base + c] = (T)gradient;
    }
}

extern "C" __global__ void __launch_bounds__(32 * DOWN)
    rmsnorm_backward_columns(const T* __restrict__ x, const T* __restrict__ dout, const float* __restrict__ rstd,
                             float* __restrict__ dweight, int rows, int cols) {
    // x, dout [rows][cols]; rstd [rows]; dweight [cols]
    __shared__ float products[DOWN][32];
    const int c = blockIdx.x * 32 + threadIdx.x;
    float product = 0.0f;
    if (c < cols) {
        for (int row = threadIdx.y; row < rows; row += DOWN) {
            const size_t i = (size_t)row * cols + c;
            product += (float)dout[i] * ((float)x[i] * rstd[row]);
        }
    }
    products[threadIdx.y][threadIdx.x] = product;
    __syncthreads();
    if (threadIdx.y != 0 || c >= cols) return;
    for (int y = 1; y < DOWN; ++y) {
        product += products[y][threadIdx.x];
    }
    dweight[c] = product;
}
