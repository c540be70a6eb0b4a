// /// opbench
// title    = "one thread per row, three passes over it"
// tune     = { BLOCK = [64, 128, 256] }
// define   = { BF16 = "dtype == 'bf16'", LOG = "log == 'yes'" }
// supports = { log = ["no", "yes"], dtype = ["f32", "bf16"] }
//
// [[launch]]
// kernel = "softmax_thread_per_row"
// grid   = ["cdiv(rows, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant: each thread computes one row by the definition: maximum, sum and quotient. Limits: neighbouring
// threads read a whole row apart, so each fetches a sector of its own; every row is read three times; few rows leave
// most of the GPU idle.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void softmax_thread_per_row(const T* __restrict__ x, T* __restrict__ out, int rows, int cols) {
    // x, out [rows][cols]
    const int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= rows) return;
    const T* source = x + (size_t)row * cols;
    float largest = __int_as_float(0xff800000), sum = 0.0f;  // -infinity
    for (int c = 0; c < cols; ++c) largest = fmaxf(largest, (float)source[c]);
    for (int c = 0; c < cols; ++c) sum += __expf((float)source[c] - largest);
    const float last = LOG ? logf(sum) : 1.0f / sum;
    for (int c = 0; c < cols; ++c) {
        const float below = (float)source[c] - largest;
        out[(size_t)row * cols + c] = (T)(LOG ? below - last : __expf(below) * last);
    }
}
