// /// opbench
// title    = "one thread per row for dx, one thread per column for dweight and dbias"
// tune     = { BLOCK = [128, 64, 256] }
// define   = { BF16 = "dtype == 'bf16'", ADD = "residual == 'add'" }
// supports = { dtype = ["f32", "bf16"], residual = ["none", "add"] }
//
// [[launch]]
// kernel = "layernorm_backward_rows"
// grid   = ["cdiv(rows, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "dout", "weight", "mean", "rstd", "dsum?", "dx", "rows", "cols"]
//
// [[launch]]
// kernel = "layernorm_backward_columns"
// grid   = ["cdiv(cols, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "dout", "mean", "rstd", "dweight", "dbias", "rows", "cols"]
// ///
//
// The first variant: both formulas as they are defined. Neighbouring threads of the second kernel read neighbouring
// columns. Limits: neighbouring threads of the first kernel read a whole row apart; in the second kernel, a few
// thousand columns leave most of the GPU idle, and each thread adds up all rows one after the other; x and dout are
// read three times.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void layernorm_backward_rows(const T* __restrict__ x, const T* __restrict__ dout,
                                                   const float* __restrict__ weight, const float* __restrict__ mean,
                                                   const float* __restrict__ rstd,
#if ADD
                                                   const T* __restrict__ dsum,
#endif
                                                   T* __restrict__ dx, int rows, int cols) {
    // x, dout, dsum, dx [rows][cols]; weight [cols]; mean, rstd [rows]
    const int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= rows) return;
    const size_t base = (size_t)row * cols;
    float sum = 0.0f, product = 0.0f;
    for (int c = 0; c < cols; ++c) {
        const float normalised = ((float)x[base + c] - mean[row]) * rstd[row];
        const float slope = (float)dout[base + c] * weight[c];
        sum += slope;
        product += slope * normalised;
    }
    sum /= cols;
    product /= cols;
    for (int c = 0; c < cols; ++c) {
        const float normalised = ((float)x[base + c] - mean[row]) * rstd[row];
        const float slope = (float)dout[base + c] * weight[c];
        float gradient = rstd[row] * (slope - sum - normalised * product);
#if ADD
        gradient += (float)dsum[base + c];
#endif
        dx[base + c] = (T)gradient;
    }
}

extern "C" __global__ void layernorm_backward_columns(const T* __restrict__ x, const T* __restrict__ dout,
                                                      const float* __restrict__ mean, const float* __restrict__ rstd,
                                                      float* __restrict__ dweight, float* __restrict__ dbias, int rows,
                                                      int cols) {
    // x, dout [rows][cols]; mean, rstd [rows]; dweight, dbias [cols]
    const int c = blockIdx.x * BLOCK + threadIdx.x;
    if (c >= cols) return;
    float sum = 0.0f, product = 0.0f;
    for (int row = 0; row < rows; ++row) {
        const size_t i = (size_t)row * cols + c;
        sum += (float)dout[i];
        product += (float)dout[i] * (((float)x[i] - mean[row]) * rstd[row]);
    }
    dweight[c] = product;
    dbias[c] = sum;
}
