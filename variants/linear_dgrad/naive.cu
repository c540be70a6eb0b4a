// /// opbench
// title    = "one thread per element of dx, threadIdx.x along the columns: weight loads are coalesced"
// mechanism = ["coalesced"]
// supports = { epilogue = ["none", "mask", "gelu_tanh"], dtype = ["f32", "bf16"] }
// define   = { BF16 = "dtype == 'bf16'", MASK = "epilogue == 'mask'", GELU = "epilogue == 'gelu_tanh'" }
// tune     = { BLOCK = [128, 64, 256] }
// requires = ["m <= 65535"]
//
// [[launch]]
// kernel = "linear_dgrad_naive"
// grid   = ["cdiv(k, BLOCK)", "m"]
// block  = ["BLOCK"]
// ///
//
// The sum as the formula says. Unlike in the forward layer, a warp's loads of the weights are whole sectors:
// neighbouring elements of dx use neighbouring weights of a row. Limit: every row of dx reads all weights again, at
// best from L2, and each loaded weight is used for one multiply-add.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// dout [m][n], weight [n][k], out, a and dx [m][k]
extern "C" __global__ void __launch_bounds__(BLOCK)
    linear_dgrad_naive(const T* __restrict__ dout, const T* __restrict__ weight,
#if MASK
                       const T* __restrict__ out,
#elif GELU
                       const T* __restrict__ a,
#endif
                       T* __restrict__ dx, int m, int n, int k) {
    const int column = blockIdx.x * BLOCK + threadIdx.x, row = blockIdx.y;
    if (row >= m || column >= k) return;
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) sum += (float)dout[(size_t)row * n + i] * (float)weight[(size_t)i * k + column];
    const size_t at = (size_t)row * k + column;
#if MASK
    if (!((float)out[at] > 0.0f)) sum = 0.0f;
#elif GELU
    const float x = (float)a[at], share = 1.0f / (1.0f + __expf(-1.59576912f * x * (1.0f + 0.044715f * x * x)));
    sum *= share + x * share * (1.0f - share) * 1.59576912f * (1.0f + 0.134145f * x * x);
#endif
    dx[at] = (T)sum;
}
