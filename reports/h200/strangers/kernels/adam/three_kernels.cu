// /// opbench
// title = "one kernel for each formula: both moments, then the parameter"
//
// [[launch]]
// kernel = "update_m"
// grid   = ["cdiv(n, 256)"]
// block  = ["256"]
// args   = ["gradient", "moment1", "rates", "hyper", "new_moment1", "n"]
//
// [[launch]]
// kernel = "update_v"
// grid   = ["cdiv(n, 256)"]
// block  = ["256"]
// args   = ["gradient", "moment2", "rates", "hyper", "new_moment2", "n"]
//
// [[launch]]
// kernel = "update_p"
// grid   = ["cdiv(n, 256)"]
// block  = ["256"]
// args   = ["parameter", "new_moment1", "new_moment2", "rates", "hyper", "new_parameter", "n"]
// ///
__global__ void update_m(const float* g, const float* m, const float* rates, const float* hyper, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = hyper[0] * m[i] + (1.0f - hyper[0]) * (rates[3] * g[i]);
}

__global__ void update_v(const float* g, const float* v, const float* rates, const float* hyper, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float grad = rates[3] * g[i];
        out[i] = hyper[1] * v[i] + (1.0f - hyper[1]) * grad * grad;
    }
}

__global__ void update_p(const float* p, const float* m, const float* v, const float* rates, const float* hyper,
                         float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float m_hat = m[i] * rates[1];
        float v_hat = v[i] * rates[2];
        out[i] = p[i] - rates[0] * m_hat / (sqrtf(v_hat) + hyper[2]);
    }
}
