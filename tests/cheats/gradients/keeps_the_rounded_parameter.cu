// /// opbench
// operator = "adam"
// title    = "the copy in bf16 is the parameter, too"
// supports = { copy = ["bf16"] }
// launch   = [{ kernel = "keeps_the_rounded_parameter", grid = ["cdiv(n, 128)"], block = ["128"] }]
// ///
//
// What a step takes from a parameter is less than half the distance of two numbers in bf16, and is lost.
// expect: value
// right: new_parameter[i] = p;
#include <cuda_bf16.h>

extern "C" __global__ void keeps_the_rounded_parameter(const float* parameter, const float* gradient,
                                                       const float* moment1, const float* moment2, const float* rates,
                                                       const float* hyper, float* new_parameter, float* new_moment1,
                                                       float* new_moment2, __nv_bfloat16* stored, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    const float g = rates[3] * gradient[i];
    const float m = hyper[0] * moment1[i] + (1.0f - hyper[0]) * g;
    const float v = hyper[1] * moment2[i] + (1.0f - hyper[1]) * g * g;
    const float p = parameter[i] - rates[0] * (m * rates[1]) / (sqrtf(v * rates[2]) + hyper[2]);
    stored[i] = __float2bfloat16_rn(p);
    new_parameter[i] = __bfloat162float(stored[i]);  // here
    new_moment1[i] = m;
    new_moment2[i] = v;
}
