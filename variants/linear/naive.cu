// /// opbench
// title     = "one thread per output, threadIdx.x along the columns: weight loads have a stride of k"
// supports.epilogue = ["none", "bias", "bias_relu", "bias_gelu_tanh", "bias_hardswish", "bias_hardsigmoid"]
// supports.dtype    = ["f32", "bf16"]
// define.BF16 = "dtype == 'bf16'"
// define.BIAS = "epilogue != 'none'"
// define.RELU = "epilogue == 'bias_relu'"
// define.GELU = "epilogue == 'bias_gelu_tanh'"
// define.HARDSWISH   = "epilogue == 'bias_hardswish'"
// define.HARDSIGMOID = "epilogue == 'bias_hardsigmoid'"
// tune      = { ROWS = [1, 8] }
// requires  = ["cdiv(m, ROWS) <= 65535"]
//
// [[launch]]
// kernel = "linear_naive"
// grid   = ["cdiv(n, 32)", "cdiv(m, ROWS)"]
// block  = [32, "ROWS"]
// ///
//
// The sum as the formula says. The 32 threads of a warp read the same element of x, a broadcast, but 32 different rows
// of the weights: one load accesses 32 sectors and uses 4 bytes of each. Only later loads of the same sectors hit the
// caches.

#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
__device__ __forceinline__ float wide(T value) { return __bfloat162float(value); }
__device__ __forceinline__ T narrow(float value) { return __float2bfloat16(value); }
#else
typedef float T;
__device__ __forceinline__ float wide(T value) { return value; }
__device__ __forceinline__ T narrow(float value) { return value; }
#endif

// x [m, k], weight [n, k], bias [n], out [m, n].
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    linear_naive(const T* __restrict__ x, const T* __restrict__ weight,
#if BIAS
                 const T* __restrict__ bias,
#endif
                 T* __restrict__ out, int m, int n, int k) {
    const int row = blockIdx.y * ROWS + threadIdx.y, col = blockIdx.x * 32 + threadIdx.x;
    if (row >= m || col >= n) return;
    const T* x_row = x + (size_t)row * k;
    const T* weight_row = weight + (size_t)col * k;
#if BIAS
    float sum = wide(bias[col]);
#else
    float sum = 0.0f;
#endif
    for (int i = 0; i < k; ++i) sum += wide(x_row[i]) * wide(weight_row[i]);
    if (RELU) sum = fmaxf(sum, 0.0f);
    if (GELU) sum *= 0.5f + 0.5f * tanhf(0.797884561f * (sum + 0.044715f * sum * sum * sum));
    if (HARDSWISH) sum *= fminf(fmaxf(sum + 3.0f, 0.0f), 6.0f) / 6.0f;
    if (HARDSIGMOID) sum = fminf(fmaxf(sum + 3.0f, 0.0f), 6.0f) / 6.0f;
    out[(size_t)row * n + col] = narrow(sum);
}
