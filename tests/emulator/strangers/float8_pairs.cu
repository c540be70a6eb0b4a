// /// opbench
// operator = "relu"
// launch = [{ kernel = "relu_kernel", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
// Signs, as packed numbers of 8 bits keep them, however they were packed.
__global__ void relu_kernel(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float sign = x[i] > 0.0f ? 1.0f : 0.0f;
    const __nv_fp8x4_e4m3 halves(__floats2half2_rn(sign, 0.5f), __floats2half2_rn(2.0f, sign));
    const __nv_fp8x4_e5m2 floats(__floats2bfloat162_rn(sign, 0.5f), __floats2bfloat162_rn(2.0f, sign));
    const __nv_fp8x2_e4m3 pair(__floats2half2_rn(sign, 0.5f));
    const float4 a = float4(halves), b = float4(floats);
    const float2 c = float2(pair);
    const bool same = a.x == sign && b.x == sign && a.w == sign && b.w == sign && a.y + b.z == 2.5f && c.x == sign;
    out[i] = same && c.y == 0.5f ? (x[i] > 0.0f ? x[i] : 0.0f) : -1.0f;
}
