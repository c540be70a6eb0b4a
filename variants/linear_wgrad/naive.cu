// /// opbench
// title    = "one thread per weight, threadIdx.x along the columns; each thread adds over the batch"
// mechanism = ["coalesced"]
// supports = { bias = ["no", "yes"], dtype = ["f32", "bf16"] }
// define   = { BF16 = "dtype == 'bf16'", BIAS = "bias == 'yes'" }
// tune     = { BLOCK = [128, 64, 256] }
//
// [[launch]]
// kernel = "linear_wgrad_naive"
// grid   = ["n * cdiv(k, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The sum as the formula says, in the order of the batch. A warp reads neighbouring elements of a row of x and one
// element of dout; the first thread of each row also computes the gradient of the bias. Limit, for the batch of a
// training step, 32 to 256: writing dweight, and reading x n times from the caches, because each loaded element is used
// for one multiply-add.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// x [m][k], dout [m][n], dweight [n][k], dbias [n]
extern "C" __global__ void __launch_bounds__(BLOCK)
    linear_wgrad_naive(const T* __restrict__ x, const T* __restrict__ dout, float* __restrict__ dweight,
#if BIAS
                       float* __restrict__ dbias,
#endif
                       int m, int n, int k) {
    const int blocks = (k + BLOCK - 1) / BLOCK;
    const int row = blockIdx.x / blocks, column = blockIdx.x % blocks * BLOCK + threadIdx.x;
    if (column >= k) return;
    float sum = 0.0f, total = 0.0f;
    for (int i = 0; i < m; ++i) {
        const float gradient = (float)dout[(size_t)i * n + row];
        sum += gradient * (float)x[(size_t)i * k + column];
        total += gradient;
    }
    dweight[(size_t)row * k + column] = sum;
#if BIAS
    if (column == 0) dbias[row] = total;
#endif
}
