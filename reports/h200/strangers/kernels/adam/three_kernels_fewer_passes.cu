// /// opbench
// title     = "one pass: moments and parameter in one kernel"
// builds_on = "three_kernels"
// mechanism = ["fewer_passes"]
//
// [[launch]]
// kernel = "update"
// grid   = ["cdiv(n, 256)"]
// block  = ["256"]
// args   = [
//     "parameter", "gradient", "moment1", "moment2", "rates", "hyper", "new_parameter", "new_moment1", "new_moment2", "n",
// ]
// ///
__global__ void update(const float* p, const float* g, const float* m, const float* v, const float* rates,
                       const float* hyper, float* new_p, float* new_m, float* new_v, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float grad = rates[3] * g[i];
        float first = hyper[0] * m[i] + (1.0f - hyper[0]) * grad;
        float second = hyper[1] * v[i] + (1.0f - hyper[1]) * grad * grad;
        float m_hat = first * rates[1];
        float v_hat = second * rates[2];
        new_m[i] = first;
        new_v[i] = second;
        new_p[i] = p[i] - rates[0] * m_hat / (sqrtf(v_hat) + hyper[2]);
    }
}
