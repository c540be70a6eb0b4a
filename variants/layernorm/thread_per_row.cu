// /// opbench
// title    = "one thread per row, three passes over it"
// tune     = { BLOCK = [64, 128, 256] }
// define   = { BF16 = "dtype == 'bf16'", ADD = "residual == 'add'" }
// supports = { dtype = ["f32", "bf16"], residual = ["none", "add"] }
//
// [[launch]]
// kernel = "layernorm_thread_per_row"
// grid   = ["cdiv(rows, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant: each thread computes one row by the definition: mean, variance, then the result. With a residual,
// it first stores the sum, and then reads the sum instead of the inputs. Limits: neighbouring threads read a whole row
// apart, so each fetches a sector of its own; every row is read three times; few rows leave most of the GPU idle.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void layernorm_thread_per_row(const T* __restrict__ x,
#if ADD
                                                    const T* __restrict__ residual,
#endif
                                                    const float* __restrict__ weight, const float* __restrict__ bias,
                                                    T* __restrict__ out, float* __restrict__ mean,
                                                    float* __restrict__ rstd,
#if ADD
                                                    T* total,
#endif
                                                    int rows, int cols) {
    // x, residual, out, total [rows][cols]; weight, bias [cols]; mean, rstd [rows]
    const int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= rows) return;
    const T* source = x + (size_t)row * cols;
#if ADD
    total += (size_t)row * cols;
    for (int c = 0; c < cols; ++c) total[c] = (T)((float)source[c] + (float)residual[(size_t)row * cols + c]);
    source = total;
#endif
    float sum = 0.0f, squares = 0.0f;
    for (int c = 0; c < cols; ++c) sum += (float)source[c];
    const float centre = sum / cols;
    for (int c = 0; c < cols; ++c) {
        const float centred = (float)source[c] - centre;
        squares += centred * centred;
    }
    const float factor = 1.0f / sqrtf(squares / cols + 1e-5f);
    for (int c = 0; c < cols; ++c) {
        out[(size_t)row * cols + c] = (T)(((float)source[c] - centre) * factor * weight[c] + bias[c]);
    }
    mean[row] = centre;
    rstd[row] = factor;
}
